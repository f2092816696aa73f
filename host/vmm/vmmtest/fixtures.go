package vmmtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ratoon-project/ratoon/image"
)

const guestPackage = "github.com/ratoon-project/ratoon/host/vmm/vmmtest/testdata/guest"

// Fixtures are what the suite's guest boots from.
type Fixtures struct{ Kernel, Initrd string }

// Build compiles the suite's guest and packs it with the kernel's modules. The
// kernel comes from the image cache of the user, where it stays.
func Build(t testing.TB) Fixtures {
	t.Helper()
	guest := filepath.Join(t.TempDir(), "guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", guest, guestPackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		Unable(t, "compile the guest (the go command is needed): %v\n%s", err, out)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		Unable(t, "find the cache directory (set HOME or XDG_CACHE_HOME): %v", err)
	}
	cache := image.New(image.Options{Dir: image.Dir(filepath.Join(dir, "ratoon-test"))})
	ctx := context.WithoutCancel(t.Context())
	kernel, err := cache.Kernel(ctx)
	if err != nil {
		Unable(t, "%v", err)
	}
	// Not through the cache: the guest is another one with each change here.
	scratch := image.New(image.Options{Dir: t.TempDir()})
	initrd, _, err := scratch.Initramfs(ctx, kernel, guest)
	if err != nil {
		Unable(t, "%v", err)
	}
	return Fixtures{Kernel: kernel.Path, Initrd: initrd}
}

// Unable skips the test, or fails it where machines are required.
func Unable(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("RATOON_REQUIRE_VM") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
