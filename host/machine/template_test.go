package machine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/vmm"
)

var errBoot = errors.New("no boot in this test")

// bootOnly is a driver that can do nothing but begin to boot.
type bootOnly struct {
	vmm.Driver
	boot func(ramFile string) error
}

func (bootOnly) Info(context.Context) (vmm.Info, error) { return vmm.Info{Name: "test"}, nil }

func (d bootOnly) Boot(_ context.Context, _ vmm.Spec, ramFile string) (vmm.VM, error) {
	return nil, d.boot(ramFile)
}

// template asks for the template of machines with so much RAM.
func template(t *testing.T, cache string, memory int64, boot func(string) error) error {
	t.Helper()
	e, err := machine.New(t.Context(), machine.Options{Driver: bootOnly{boot: boot}, Dir: t.TempDir(), Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	_, err = e.Kind(machine.Kind{MemoryBytes: memory}).Template(t.Context(), func(string) {})
	return err
}

// A process that looks for one template must leave alone what another process
// is building, and remove what a killed one has left.
func TestTemplatesAreSweptAroundBuilders(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	stale := filepath.Join(cache, "tmp", "ba-left")
	if err := os.MkdirAll(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	booted := false
	err := template(t, cache, 1<<20, func(ramFile string) error {
		if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what a killed builder left is still there: %v", err)
		}
		other := func(string) error { booted = true; return errBoot }
		if err := template(t, cache, 2<<20, other); !errors.Is(err, errBoot) {
			t.Errorf("the other builder ended with %v", err)
		}
		if _, err := os.Stat(filepath.Dir(ramFile)); err != nil {
			t.Errorf("another process removed what is being built: %v", err)
		}
		return errBoot
	})
	if !errors.Is(err, errBoot) || !booted {
		t.Fatalf("template: %v, other booted: %v", err, booted)
	}
}
