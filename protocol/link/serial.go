package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

var _ Carrier = (*SerialPorts)(nil)

// SerialPorts is the guest's end of a link over two virtio-serial ports. The
// ports are opened once and stay open: closing one makes the driver throw away
// what the host has sent, and a later link needs it again.
//
// From drivers/char/virtio_console.c: a port has no connections. While no host
// is there a read returns 0 and a write would block; both are ready again when
// one comes, so a non-blocking file in Go's poller waits for it in Write.
type SerialPorts struct {
	control, bulk *port
}

// Port is an open virtio-serial port: an *os.File opened with O_NONBLOCK, so
// that its deadlines work.
type Port interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	Name() string
}

var _ Port = (*os.File)(nil)

// NewSerialPorts uses two open ports, which Close closes.
func NewSerialPorts(control, bulk Port) *SerialPorts {
	return &SerialPorts{newPort(control), newPort(bulk)}
}

// OpenSerialPorts waits until the driver shows both ports and opens them.
func OpenSerialPorts(ctx context.Context) (*SerialPorts, error) {
	control, err := openPort(ctx, protocol.SerialControl)
	if err != nil {
		return nil, err
	}
	bulk, err := openPort(ctx, protocol.SerialBulk)
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	return NewSerialPorts(control, bulk), nil
}

func openPort(ctx context.Context, name string) (*os.File, error) {
	const most = 50 * time.Millisecond
	for pause := time.Millisecond; ; pause = min(2*pause, most) {
		dev, err := findPort("/sys/class/virtio-ports", name)
		if err == nil {
			var f *os.File
			if f, err = openNonblock(filepath.Join("/dev", dev)); err == nil {
				return f, nil
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open serial port %s: %w", name, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("open serial port %s: %w (%w)", name, err, context.Cause(ctx))
		}
	}
}

// findPort returns the device name of the port that the host called name.
func findPort(class, name string) (string, error) {
	names, err := filepath.Glob(filepath.Join(class, "*", "name"))
	if err != nil {
		return "", fmt.Errorf("list ports: %w", err)
	}
	for _, path := range names {
		b, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(b)) == name {
			return filepath.Base(filepath.Dir(path)), nil
		}
	}
	return "", fmt.Errorf("no port of that name under %s: %w", class, fs.ErrNotExist)
}

// openNonblock opens a device so that the Go poller takes it; os.OpenFile
// keeps character devices in blocking mode.
func openNonblock(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Open takes the port of ch once the connection before it has been closed. The
// wait for a host is in the first Write.
func (p *SerialPorts) Open(ctx context.Context, ch Channel) (net.Conn, error) {
	if ch == Bulk {
		return p.bulk.take(ctx)
	}
	return p.control.take(ctx)
}

// Close closes the ports.
func (p *SerialPorts) Close() error {
	return errors.Join(p.control.file.Close(), p.bulk.file.Close())
}

// port is one open port.
type port struct {
	file Port
	turn chan struct{} // holds a token while a connection uses the port

	// Of the holder of the turn: END, which is still to be written, and
	// whether it was the last thing written.
	owed  []byte
	stall time.Duration
	ended bool
}

func newPort(f Port) *port { return &port{file: f, turn: make(chan struct{}, 1)} }

func (p *port) take(ctx context.Context) (net.Conn, error) {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the link before: %w", context.Cause(ctx))
	}
	c := &portConn{port: p}
	err := p.file.SetDeadline(time.Time{})
	if err == nil && p.owed != nil {
		err = p.writeEnd()
	}
	if err == nil && p.ended {
		err = c.awaitHost(ctx)
	}
	if err != nil {
		<-p.turn
		return nil, err
	}
	p.ended = false
	return c, nil
}

var _ delayer = (*portConn)(nil)

// end lets END be the last thing written on this connection. The next one
// writes it when it has nothing left to do but to wait for a host: the machine
// may be captured from then on, and what is still to be done is done once more
// in every copy, by code that its emulator has not translated yet.
func (c *portConn) end(record []byte, stall time.Duration) {
	c.port.owed, c.port.stall = record, stall
}

func (p *port) writeEnd() error {
	p.file.SetWriteDeadline(time.Now().Add(p.stall))
	_, err := p.file.Write(p.owed)
	p.owed, p.ended = nil, err == nil
	return errors.Join(err, p.file.SetWriteDeadline(time.Time{}))
}

// awaitHost returns when the host that was told END is gone, or another one
// has begun a handshake. Nothing may be written before: the machine is about
// to be captured, and the host reads nothing after END.
func (c *portConn) awaitHost(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.port.file.SetReadDeadline(past) })
	defer stop()
	buf := make([]byte, 4<<10)
	for kept := 0; ; {
		n, err := c.port.file.Read(buf[kept:])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("wait for the host after the end of a link: %w", cause)
		}
		if err != nil {
			return err
		}
		have := buf[:kept+n]
		if i := bytes.Index(have, synMark); i >= 0 {
			c.early = append([]byte(nil), have[i:]...)
			return nil
		}
		kept = copy(buf, have[max(0, len(have)-len(synMark)+1):])
	}
}

// portConn lends a port to one link. Close interrupts its pending reads and
// writes, waits for them, and gives the port back.
type portConn struct {
	port *port
	// early is what awaitHost read of this link. Of the reader.
	early []byte

	mu     sync.Mutex // guards closed, and deadlines against Close
	closed bool
	ops    sync.WaitGroup
}

var _ net.Conn = (*portConn)(nil)

func (c *portConn) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.ops.Add(1)
	return nil
}

func (c *portConn) done(err error) error {
	defer c.ops.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.closed {
		return net.ErrClosed
	}
	return err
}

// Read returns io.EOF while no host is connected.
func (c *portConn) Read(b []byte) (int, error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	if len(c.early) > 0 {
		n := copy(b, c.early)
		c.early = c.early[n:]
		return n, c.done(nil)
	}
	n, err := c.port.file.Read(b)
	return n, c.done(err)
}

// Write waits while no host is connected.
func (c *portConn) Write(b []byte) (int, error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	n, err := c.port.file.Write(b)
	return n, c.done(err)
}

func (c *portConn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	err := c.port.file.SetDeadline(past)
	c.mu.Unlock()
	c.ops.Wait()
	<-c.port.turn
	return err
}

func (c *portConn) deadline(set func(time.Time) error, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return set(t)
}

func (c *portConn) SetDeadline(t time.Time) error {
	return c.deadline(c.port.file.SetDeadline, t)
}

func (c *portConn) SetReadDeadline(t time.Time) error {
	return c.deadline(c.port.file.SetReadDeadline, t)
}

func (c *portConn) SetWriteDeadline(t time.Time) error {
	return c.deadline(c.port.file.SetWriteDeadline, t)
}

func (c *portConn) LocalAddr() net.Addr  { return portAddr(c.port.file.Name()) }
func (c *portConn) RemoteAddr() net.Addr { return portAddr(c.port.file.Name()) }

// portAddr is the path of a port's device.
type portAddr string

func (portAddr) Network() string  { return "virtio-serial" }
func (a portAddr) String() string { return string(a) }
