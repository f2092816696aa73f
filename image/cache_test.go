package image_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ratoon-project/ratoon/image"
	"github.com/ratoon-project/ratoon/internal/fault"
)

func stages(n *atomic.Int32, prefix string) image.Progress {
	return func(stage string, _, _ int64) {
		if strings.HasPrefix(stage, prefix) {
			n.Add(1)
		}
	}
}

func kernel(t *testing.T, opt image.Options) image.Kernel {
	t.Helper()
	k, err := image.New(opt).Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// count is how often the kernel was copied into the cache.
func count(opt *image.Options) *atomic.Int32 {
	var n atomic.Int32
	opt.Progress = stages(&n, "copying kernel")
	return &n
}

func TestBuiltOnce(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	built := count(&opt)
	var wg sync.WaitGroup
	paths := make([]string, 4)
	for i := range paths {
		wg.Go(func() {
			k, err := image.New(opt).Kernel(t.Context())
			if err != nil {
				t.Error(err)
			}
			paths[i] = k.Path
		})
	}
	wg.Wait()
	for _, p := range paths {
		if p != paths[0] || p == "" {
			t.Errorf("different results: %q", paths)
		}
	}
	if built.Load() != 1 {
		t.Errorf("built %d times, want once", built.Load())
	}
	if left, _ := os.ReadDir(filepath.Join(opt.Dir, "tmp")); len(left) != 0 {
		t.Errorf("temporary directories left: %v", left)
	}
}

func TestWaitsForBuilder(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	var waits atomic.Int32
	inside, release := make(chan struct{}), make(chan struct{})
	first := opt
	first.Progress = func(stage string, _, _ int64) {
		if strings.HasPrefix(stage, "copying") {
			close(inside)
			<-release
		}
	}
	second := opt
	built := count(&second)
	report := second.Progress
	var once sync.Once
	second.Progress = func(stage string, done, total int64) {
		report(stage, done, total)
		if strings.HasPrefix(stage, "waiting") {
			waits.Add(1)
			once.Do(func() { close(release) })
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := image.New(first).Kernel(t.Context()); err != nil {
			t.Error(err)
		}
	})
	<-inside
	kernel(t, second)
	wg.Wait()
	if waits.Load() == 0 || built.Load() != 0 {
		t.Errorf("second waited %d times and built %d times, want a wait and no build", waits.Load(), built.Load())
	}
}

func TestDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"flip": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[len(b)-1] ^= 1
			return os.WriteFile(path, b, 0o644)
		},
		"truncate": func(path string) error { return os.Truncate(path, 7) },
		"remove":   os.Remove,
		"manifest": func(path string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), "manifest.json"), []byte(`{"kind":"kern`), 0o644)
		},
		"no manifest": func(path string) error { return os.Remove(filepath.Join(filepath.Dir(path), "manifest.json")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, opt := newCache(t)
			built := count(&opt)
			k := kernel(t, opt)
			before := must(os.ReadFile(k.Path))
			if err := damage(k.Path); err != nil {
				t.Fatal(err)
			}
			again := kernel(t, opt)
			after := must(os.ReadFile(again.Path))
			if built.Load() != 2 || string(before) != string(after) || again.Digest != k.Digest {
				t.Errorf("built %d times, want 2; same content: %v", built.Load(), string(before) == string(after))
			}
		})
	}
}

// TestStamp: an entry whose stamp is gone is hashed, found good and kept.
func TestStamp(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	built := count(&opt)
	k := kernel(t, opt)
	stamp := filepath.Join(filepath.Dir(k.Path), "verified.json")
	if err := os.WriteFile(stamp, []byte("nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	kernel(t, opt)
	if b := must(os.ReadFile(stamp)); built.Load() != 1 || string(b) == "nonsense" {
		t.Errorf("built %d times, want once; stamp %q", built.Load(), b)
	}
	for _, e := range image.New(opt).List() {
		if err := e.Verify(); err != nil {
			t.Error(err)
		}
	}
}

func TestRefreshAndRemove(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	built := count(&opt)
	k := kernel(t, opt)
	opt.Refresh = true
	if again := kernel(t, opt); built.Load() != 2 || again != k {
		t.Errorf("built %d times, want 2; got %+v, want %+v", built.Load(), again, k)
	}
	c := image.New(opt)
	list := c.List()
	if len(list) != 1 || list[0].Digest() != k.Digest {
		t.Fatalf("got %d entries, want the kernel's", len(list))
	}
	if err := c.Remove(t.Context(), list[0]); err != nil {
		t.Fatal(err)
	}
	if n := len(c.List()); n != 0 {
		t.Errorf("%d entries after Remove", n)
	}
}

// TestKilled kills a builder before each step that makes its work last, and
// checks that the next one cleans up and succeeds.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, label := range []string{"image:fsync", "image:fsync#2", "image:manifest", "image:stamp.rename", "image:rename"} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			_, opt := newCache(t)
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledChild$")
			cmd.Env = append(os.Environ(), "RATOON_IMAGE_CHILD="+opt.Dir, "RATOON_KERNEL="+opt.Kernel,
				"RATOON_MODULES="+opt.ModulesDir, fault.Env+"="+label+"=kill")
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Fatalf("the child was not killed: %s", out)
			}
			tmp := filepath.Join(opt.Dir, "tmp")
			if left := must(os.ReadDir(tmp)); len(left) != 1 {
				t.Fatalf("%d temporary directories after the kill, want 1", len(left))
			}
			kernel(t, opt)
			if left := must(os.ReadDir(tmp)); len(left) != 0 {
				t.Errorf("temporary directories left: %v", left)
			}
		})
	}
}

func TestKilledChild(t *testing.T) {
	dir := os.Getenv("RATOON_IMAGE_CHILD")
	if dir == "" {
		return // only as the child of TestKilled
	}
	kernel(t, image.Options{Dir: dir, Kernel: os.Getenv("RATOON_KERNEL"), ModulesDir: os.Getenv("RATOON_MODULES")})
}

// TestSweep: a temporary directory is removed with its scratch directory
// elsewhere, but not one that somebody is building in.
func TestSweep(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	kernel(t, opt)
	scratch := filepath.Join(t.TempDir(), "ratoon-image-1")
	other := filepath.Join(t.TempDir(), "precious")
	for _, dir := range []string{scratch, other} {
		write(t, filepath.Join(dir, "file"), nil)
	}
	write(t, filepath.Join(opt.Dir, "tmp/builtin-0011223344556677-1/scratch"), []byte(scratch))
	write(t, filepath.Join(opt.Dir, "tmp/builtin-0011223344556677-2/scratch"), []byte(other))
	image.New(opt).Sweep()
	if left := must(os.ReadDir(filepath.Join(opt.Dir, "tmp"))); len(left) != 0 {
		t.Errorf("temporary directories left: %v", left)
	}
	if _, err := os.Stat(scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("scratch directory left: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("a directory that is not ours was removed: %v", err)
	}
	busy := opt
	busy.Kernel = fakeKernel(t, "6.2")
	busy.Progress = func(stage string, _, _ int64) {
		if strings.HasPrefix(stage, "copying") {
			image.New(opt).Sweep()
		}
	}
	kernel(t, busy)
}

func TestUnwritable(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	opt.Dir = filepath.Join(opt.Kernel, "under-a-file")
	if _, err := image.New(opt).Kernel(t.Context()); err == nil {
		t.Error("a cache below a file worked")
	}
}

// TestNoSpace cannot run beside the tests that pass the same label.
func TestNoSpace(t *testing.T) {
	_, opt := newCache(t)
	clear := fault.Set("image:manifest", 1, fault.Error(os.NewSyscallError("write", syscall.ENOSPC)))
	_, err := image.New(opt).Kernel(t.Context())
	clear()
	if e, ok := errors.AsType[*image.Error](err); !errors.Is(err, image.ErrNoSpace) || !ok || !strings.Contains(e.Remedy, opt.Dir) {
		t.Errorf("got %v, want ErrNoSpace with the directory in the remedy", err)
	}
	kernel(t, opt)
	if n := len(image.New(opt).List()); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	p := image.Terminal(&b)
	for i := range int64(3) {
		p("downloading", i, 3)
	}
	p("storing", 0, 0)
	if n := strings.Count(b.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want one per stage:\n%s", n, b.String())
	}
}

func TestFindAgentd(t *testing.T) {
	t.Setenv(image.EnvAgentd, "")
	if _, err := image.FindAgentd(); !errors.Is(err, image.ErrNoAgentd) {
		t.Errorf("got %v, want ErrNoAgentd: there is none beside the test binary", err)
	}
	path := filepath.Join(t.TempDir(), "agentd")
	write(t, path, nil)
	t.Setenv(image.EnvAgentd, path)
	if got, err := image.FindAgentd(); err != nil || got != path {
		t.Errorf("got %q, %v; want %q", got, err, path)
	}
}
