package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// SaveState implements vmm.VM. QEMU writes to a file in memory, whose content
// the host then writes: QEMU's user needs no directory, and a full disk is the
// host's to notice.
func (v *VM) SaveState(ctx context.Context, path string) error {
	state, err := v.saveToMemory(ctx)
	if err != nil {
		return fmt.Errorf("save device state: %w", err)
	}
	defer state.Close()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return diskError(err)
	}
	err = fault.Point("qemu.state.write")
	if err == nil {
		_, err = io.Copy(out, io.NewSectionReader(state, 0, maxState))
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return errors.Join(diskError(err), os.Remove(path))
	}
	return nil
}

func diskError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeDiskFull, "write device state"), err)
	}
	return fmt.Errorf("write device state: %w", err)
}

func (v *VM) saveToMemory(ctx context.Context) (*os.File, error) {
	paused, err := v.Paused(ctx)
	if err != nil {
		return nil, err
	}
	if !paused {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "machine is not paused")
	}
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "state")
	if err := v.saveTo(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && (st.Size() == 0 || st.Size() > maxState) {
		err = fmt.Errorf("QEMU wrote %d bytes", st.Size())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// saveTo has QEMU write to f by way of a descriptor set, in which the mode of
// the descriptor must be the one that QEMU asks for.
func (v *VM) saveTo(ctx context.Context, f *os.File) error {
	w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	var set struct {
		ID int `json:"fdset-id"`
	}
	if err := v.execute(ctx, "add-fd", nil, &set, w); err != nil {
		return err
	}
	arguments := map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", set.ID), "live": false}
	err = v.execute(ctx, "xen-save-devices-state", arguments, nil)
	return errors.Join(err, v.execute(ctx, "remove-fd", map[string]any{"fdset-id": set.ID}, nil))
}
