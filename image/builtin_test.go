package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/Microsoft/hcsshim/ext4/tar2ext4"

	"github.com/ratoon-project/ratoon/image"
)

// fakeBootstrap puts a program called mmdebstrap first in PATH.
func fakeBootstrap(t *testing.T, script string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("run as root: an ordinary user's ranges in /etc/subuid are checked first")
	}
	bin := t.TempDir()
	write(t, filepath.Join(bin, "mmdebstrap"), []byte("#!/bin/sh\n"+script))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", t.TempDir())
}

func smallTar(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./etc/link", Typeflag: tar.TypeSymlink, Linkname: "target", Mode: 0o777},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "root.tar")
	write(t, path, append(b.Bytes(), make([]byte, 10240)...))
	return path
}

func helper(body string) fstest.MapFS {
	return fstest.MapFS{
		"ratoon/__init__.py":           {Data: []byte(body)},
		"ratoon/py.typed":              {},
		"ratoon/sub/mod.py":            {Data: []byte("y = 2\n")},
		"ratoon/__pycache__/junk.pyc":  {Data: []byte("junk")},
		"elsewhere/not_in_the_package": {Data: []byte("z")},
	}
}

func TestBuiltin(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "overlay.tar")
	argsFile := filepath.Join(t.TempDir(), "args")
	fakeBootstrap(t, `echo run >>`+argsFile+`
printf '%s\n' "$@" >>`+argsFile+`
echo "I: running apt-get update..." >&2
echo "I: using /tmp/x as tempdir" >&2
cp "$TMPDIR"/overlay.tar `+saved+`
cat `+smallTar(t))
	var seen []string
	c := image.New(image.Options{Dir: t.TempDir(), Progress: func(stage string, _, _ int64) { seen = append(seen, stage) }})
	opt := image.BuiltinOptions{Helper: helper("x = 1\n"), HelperVersion: "1.2", Packages: []string{"jq", "git"}}
	img, err := c.Builtin(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if !tar2ext4.IsDeviceExt4(img.Path) {
		t.Errorf("%s is no ext4 image", img.Path)
	}
	if img.Config.WorkingDir != "/workspace" || len(img.Config.Env) == 0 {
		t.Errorf("config %+v", img.Config)
	}
	if got := strings.Join(seen, "; "); !strings.Contains(got, "running apt-get update") || strings.Contains(got, "tempdir") {
		t.Errorf("stages: %s", got)
	}
	checkOverlay(t, saved)
	args := string(must(os.ReadFile(argsFile)))
	if !strings.Contains(args, "--include=ca-certificates,git,jq,procps,python3,") {
		t.Errorf("packages are not sorted and unique in:\n%s", args)
	}
	again, err := c.Builtin(t.Context(), opt)
	if err != nil || again.Digest != img.Digest {
		t.Errorf("second use: %+v, %v", again, err)
	}
	opt.Helper = helper("x = 2\n")
	if _, err := c.Builtin(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(must(os.ReadFile(argsFile))), "run\n"); n != 2 {
		t.Errorf("built %d times for two different helpers, want 2", n)
	}
	if left := must(os.ReadDir(os.TempDir())); len(left) != 0 {
		t.Errorf("left in the temporary directory: %v", left)
	}
}

func checkOverlay(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		var b bytes.Buffer
		must(b.ReadFrom(r))
		files[h.Name] = b.String()
	}
	const dist = "usr/lib/python3/dist-packages/"
	for name, want := range map[string]string{
		"workspace/":                           "",
		dist + "ratoon/__init__.py":            "x = 1",
		dist + "ratoon/sub/mod.py":             "y = 2",
		dist + "ratoon-1.2.dist-info/METADATA": "Version: 1.2\n",
		dist + "ratoon-1.2.dist-info/RECORD":   "ratoon/__init__.py,sha256=",
		"etc/default/locale":                   "LANG=C.UTF-8",
	} {
		if got, ok := files[name]; !ok || !strings.Contains(got, want) {
			t.Errorf("%s: present %v, %q; want %q in it", name, ok, got, want)
		}
	}
	for name := range files {
		if strings.Contains(name, "__pycache__") || strings.Contains(name, "elsewhere") {
			t.Errorf("%s should not be installed", name)
		}
	}
}

func TestBuiltinErrors(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		want   error
	}{
		"network": {`echo "E: Failed to fetch http://archive.example/x  Temporary failure resolving 'archive.example'" >&2; exit 1`, image.ErrNoNetwork},
		"space":   {`echo "tar: write error: No space left on device" >&2; exit 1`, image.ErrNoSpace},
	} {
		t.Run(name, func(t *testing.T) {
			fakeBootstrap(t, test.script)
			_, err := image.New(image.Options{Dir: t.TempDir()}).Builtin(t.Context(), image.BuiltinOptions{})
			if e, ok := errors.AsType[*image.Error](err); !errors.Is(err, test.want) || !ok || e.Remedy == "" {
				t.Errorf("got %v, want %v with a remedy", err, test.want)
			}
		})
	}
	t.Run("half a tar", func(t *testing.T) {
		fakeBootstrap(t, `head -c 700 `+smallTar(t)+`; echo "E: it broke" >&2; exit 3`)
		_, err := image.New(image.Options{Dir: t.TempDir()}).Builtin(t.Context(), image.BuiltinOptions{})
		if err == nil || !strings.Contains(err.Error(), "it broke") {
			t.Errorf("got %v, want the program's own words", err)
		}
	})
	t.Run("not a tar", func(t *testing.T) {
		fakeBootstrap(t, `yes nonsense`)
		if _, err := image.New(image.Options{Dir: t.TempDir()}).Builtin(t.Context(), image.BuiltinOptions{}); err == nil {
			t.Error("an endless text became an image")
		}
	})
	t.Run("no program", func(t *testing.T) {
		fakeBootstrap(t, "")
		t.Setenv("PATH", t.TempDir())
		_, err := image.New(image.Options{Dir: t.TempDir()}).Builtin(t.Context(), image.BuiltinOptions{})
		if !errors.Is(err, image.ErrNoTool) || !strings.Contains(err.Error(), "apt-get install mmdebstrap") {
			t.Errorf("got %v, want ErrNoTool with the package", err)
		}
	})
	t.Run("option as package", func(t *testing.T) {
		_, err := image.New(image.Options{Dir: t.TempDir()}).Builtin(t.Context(), image.BuiltinOptions{Packages: []string{"--evil"}})
		if err == nil || !strings.Contains(err.Error(), "--evil") {
			t.Errorf("got %v, want a refusal", err)
		}
	})
}

// TestBuiltinCancelled: the program is stopped, also one that only reads.
func TestBuiltinCancelled(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	stopped := filepath.Join(t.TempDir(), "stopped")
	fakeBootstrap(t, `trap "touch `+stopped+`; exit 1" TERM; touch `+started+`; while :; do sleep 0.05; done`)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(started); err == nil {
				cancel(reason)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	dir := t.TempDir()
	_, err := image.New(image.Options{Dir: dir}).Builtin(ctx, image.BuiltinOptions{})
	if !errors.Is(err, reason) {
		t.Errorf("got %v, want the cause of the cancellation", err)
	}
	if _, err := os.Stat(stopped); err != nil {
		t.Errorf("the program was not told to stop: %v", err)
	}
	if left := must(os.ReadDir(filepath.Join(dir, "tmp"))); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
