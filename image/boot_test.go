package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Microsoft/hcsshim/ext4/tar2ext4"

	"github.com/ratoon-project/ratoon/image"
)

// cacheDir is shared by the tests that need a real kernel or image, so that a
// package is downloaded once; RATOON_TEST_CACHE names a lasting one.
func cacheDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("RATOON_TEST_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return t.TempDir()
	}
	return image.Dir(filepath.Join(dir, "ratoon-test"))
}

func testKernel(t *testing.T, c *image.Cache) image.Kernel {
	t.Helper()
	k, err := c.Kernel(t.Context())
	if err != nil {
		t.Skipf("no guest kernel: %v", err)
	}
	return k
}

// TestBoot starts a real machine from the kernel and initramfs built here.
func TestBoot(t *testing.T) {
	t.Parallel()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("qemu-system-x86_64 is not installed: run `make setup`")
	}
	cache := image.New(image.Options{Dir: cacheDir(t)})
	kernel := testKernel(t, cache)
	dir := t.TempDir()
	initrd, _, err := image.New(image.Options{Dir: dir}).Initramfs(t.Context(), kernel, buildStub(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	root := smallRoot(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, "-accel", "tcg", "-machine", "q35", "-cpu", "max", "-m", "256", "-smp", "1",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", kernel.Path, "-initrd", initrd, "-append", image.Cmdline,
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+root, "-device", "virtio-blk-pci,drive=root",
		"-device", "virtio-serial-pci", "-device", "virtio-rng-pci")
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run QEMU: %v\n%s", err, out)
	}
	t.Logf("%v\n%s", time.Since(start), out)
	if !bytes.Contains(out, []byte("stub ok: hello from ext4")) {
		t.Errorf("the guest did not get to its root:\n%s", out)
	}
}

func buildStub(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "stubinit")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "./testdata/stubinit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the stub: %v\n%s", err, out)
	}
	return path
}

func smallRoot(t *testing.T, dir string) string {
	t.Helper()
	const text = "hello from ext4"
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "greeting", Mode: 0o644, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "root.ext4"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := tar2ext4.ConvertTarToExt4(&archive, f, tar2ext4.InlineData); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}
