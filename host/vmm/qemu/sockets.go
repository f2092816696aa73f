package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// Names of the sockets in a machine's directory.
const (
	qmpSocket     = "qmp.sock"
	controlSocket = "control.sock"
	bulkSocket    = "bulk.sock"
	consoleSocket = "console.sock"
)

var allSockets = []string{qmpSocket, controlSocket, bulkSocket, consoleSocket}

// socketDir makes and reaches the sockets of one machine through a descriptor
// of its directory, so that long paths do not hit the limit of 108 bytes. The
// directory is locked by the process that has the machine.
type socketDir struct{ dir *os.File }

func openSocketDir(path string) (*socketDir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory of the machine: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	s := &socketDir{os.NewFile(uintptr(fd), path)}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = protocol.Errorf(protocol.CodeBusy, "another process has the machine in %s", path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock directory of the machine: %w", err), s.release())
	}
	return s, nil
}

func (s *socketDir) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", s.dir.Fd()), name)
}

// listen makes the socket that QEMU inherits and accepts from. One that a
// killed process left is replaced.
func (s *socketDir) listen(name string) (*os.File, error) {
	if err := s.remove(name); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: s.path(name)}); err != nil {
		f.Close()
		return nil, fmt.Errorf("bind %s: %w", filepath.Join(s.dir.Name(), name), err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		f.Close()
		return nil, fmt.Errorf("listen on %s: %w", filepath.Join(s.dir.Name(), name), err)
	}
	return f, nil
}

func (s *socketDir) dial(ctx context.Context, name string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", s.path(name))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", filepath.Join(s.dir.Name(), name), err)
	}
	return c.(*net.UnixConn), nil
}

func (s *socketDir) remove(name string) error {
	err := unix.Unlinkat(int(s.dir.Fd()), name, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", filepath.Join(s.dir.Name(), name), err)
	}
	return nil
}

// close removes the sockets.
func (s *socketDir) close() error {
	var errs []error
	for _, name := range allSockets {
		errs = append(errs, s.remove(name))
	}
	return errors.Join(append(errs, s.release())...)
}

// release gives the directory to the next process.
func (s *socketDir) release() error { return s.dir.Close() }

// carrier is the host's end of the serial ports.
type carrier struct{ vm *VM }

var _ link.Carrier = carrier{}

// Open implements link.Carrier.
func (c carrier) Open(ctx context.Context, ch link.Channel) (net.Conn, error) {
	name := map[link.Channel]string{link.Control: controlSocket, link.Bulk: bulkSocket}[ch]
	if name == "" {
		return nil, fmt.Errorf("open channel %q: no such channel", ch)
	}
	select {
	case <-c.vm.done:
		return nil, fmt.Errorf("open channel %s: %w", ch, c.vm.Err())
	default:
		return c.vm.sockets.dial(ctx, name)
	}
}
