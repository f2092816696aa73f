package qemu

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
)

// Boot implements vmm.Driver.
func (d *Driver) Boot(ctx context.Context, spec vmm.Spec, ramFile string) (vmm.VM, error) {
	vm, err := d.start(ctx, spec, func(m *machine, files *inherited) error {
		ram, err := createRAM(ramFile, spec)
		if err != nil {
			return err
		}
		m.ram, m.ramShared = files.give(ram), true
		return addBootFiles(m, files, spec)
	})
	if err != nil {
		return nil, fmt.Errorf("boot machine: %w", err)
	}
	return vm, nil
}

// createRAM makes the file of a template's RAM, or takes an empty one.
func createRAM(path string, spec vmm.Spec) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create RAM file: %w", err)
	}
	st, err := f.Stat()
	if err == nil && st.Size() != 0 {
		err = fmt.Errorf("%s is not empty", path)
	}
	if err == nil {
		err = f.Truncate(spec.MemoryBytes)
	}
	// QEMU opens it again by /proc/self/fd, with its own permissions.
	if err == nil && os.Geteuid() == 0 {
		err = f.Chown(int(id(spec.UID, os.Geteuid())), int(id(spec.GID, os.Getegid())))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create RAM file: %w", err)
	}
	return f, nil
}

// addBootFiles passes kernel and initrd as sealed copies: QEMU opens them by
// path, for which its user needs a permission that the originals may not give.
func addBootFiles(m *machine, files *inherited, spec vmm.Spec) error {
	m.boot = &bootFiles{initrd: -1, cmdline: guestCmdline}
	if spec.Cmdline != "" {
		m.boot.cmdline += " " + spec.Cmdline
	}
	kernel, err := memory.SealedCopy(spec.Kernel)
	if err != nil {
		return fmt.Errorf("copy kernel: %w", err)
	}
	m.boot.kernel = files.give(kernel)
	if spec.Initrd == "" {
		return nil
	}
	initrd, err := memory.SealedCopy(spec.Initrd)
	if err != nil {
		return fmt.Errorf("copy initrd: %w", err)
	}
	m.boot.initrd = files.give(initrd)
	return nil
}
