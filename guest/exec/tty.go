package exec

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// terminal is a new pseudo-terminal. The slave stays open here until the main
// process has ended: without it reading the master would fail whenever the
// program happens to hold no descriptor of its terminal.
type terminal struct {
	master *os.File
	slave  int
}

func openTerminal(owner int, rows, columns uint16) (*terminal, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	t := &terminal{master: os.NewFile(uintptr(master), "ptmx"), slave: -1}
	if err := t.setUp(master, owner, rows, columns); err != nil {
		t.master.Close()
		t.hangUp()
		return nil, fmt.Errorf("set up terminal: %w", err)
	}
	return t, nil
}

func (t *terminal) setUp(master, owner int, rows, columns uint16) error {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	// TIOCGPTPEER needs no path to the slave, so it works whatever is mounted
	// on /dev/pts.
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return errno
	}
	t.slave = int(fd)
	if err := unix.Fchown(t.slave, owner, -1); err != nil {
		return err
	}
	if rows == 0 || columns == 0 {
		rows, columns = 24, 80
	}
	return resize(master, rows, columns)
}

func (t *terminal) hangUp() {
	if t.slave >= 0 {
		unix.Close(t.slave)
		t.slave = -1
	}
}

func resize(fd int, rows, columns uint16) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
}

// foreground is the process group that the terminal's keys would signal.
func foreground(fd int) (int, bool) {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return group, err == nil && group > 0
}
