package fork

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Freezer freezes a cgroup (version 2) with everything below it.
type Freezer struct{ dir string }

// NewFreezer makes a freezer of the cgroup at dir.
func NewFreezer(dir string) *Freezer { return &Freezer{dir: dir} }

// pollStep bounds how late Freeze notices the end of its context.
const pollStep = 20 * time.Millisecond

// Freeze returns when no process of the cgroup runs. When ctx ends first, the
// cgroup is unfrozen.
func (f *Freezer) Freeze(ctx context.Context) error {
	events, err := os.Open(filepath.Join(f.dir, "cgroup.events"))
	if err != nil {
		return fmt.Errorf("open the events of the user cgroup: %w", err)
	}
	defer events.Close()
	if err := f.set("1"); err != nil {
		return err
	}
	for {
		frozen, err := readFrozen(events)
		if err == nil && frozen {
			return nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			if undo := f.set("0"); undo != nil {
				return fmt.Errorf("freeze the user cgroup: %w (and %w)", err, undo)
			}
			return fmt.Errorf("freeze the user cgroup: %w", err)
		}
		// The kernel wakes POLLPRI when cgroup.events changes.
		fds := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(fds, int(pollStep/time.Millisecond)); err != nil && err != unix.EINTR {
			time.Sleep(pollStep)
		}
	}
}

// Thaw lets the processes run again.
func (f *Freezer) Thaw() error { return f.set("0") }

// Frozen tells whether the cgroup is frozen or about to be.
func (f *Freezer) Frozen() (bool, error) {
	b, err := os.ReadFile(filepath.Join(f.dir, "cgroup.freeze"))
	if err != nil {
		return false, fmt.Errorf("read the state of the user cgroup: %w", err)
	}
	return bytes.HasPrefix(b, []byte("1")), nil
}

func (f *Freezer) set(v string) error {
	if err := os.WriteFile(filepath.Join(f.dir, "cgroup.freeze"), []byte(v), 0); err != nil {
		return fmt.Errorf("set cgroup.freeze to %s: %w", v, err)
	}
	return nil
}

func readFrozen(events *os.File) (bool, error) {
	b := make([]byte, 256)
	n, err := unix.Pread(int(events.Fd()), b, 0)
	if err != nil {
		return false, fmt.Errorf("read cgroup.events: %w", err)
	}
	return bytes.Contains(b[:n], []byte("frozen 1")), nil
}
