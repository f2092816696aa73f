package linktest

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol/link"
)

// queueLen is how much a virtio-serial queue holds in either direction.
const queueLen = 128 << 10

// Serial is two virtio-serial ports with the manners of QEMU and of the Linux
// driver, as far as a link can notice them:
//
//   - a port has no connections; the guest's file stays open, and what it has
//     queued outlives the host that sent it;
//   - what the guest wrote and the host did not take goes to the next host,
//     from wherever the first one was cut off;
//   - without a host a read returns 0 bytes at once and a write waits;
//   - the guest's side has no close that the host could see.
type Serial struct {
	ports map[link.Channel]*SerialPort
}

// NewSerial returns two ports without a host.
func NewSerial() *Serial {
	return &Serial{map[link.Channel]*SerialPort{link.Control: newSerialPort(), link.Bulk: newSerialPort()}}
}

// Host is the carrier of the host's end. Opening a channel disconnects the
// host that was there.
func (s *Serial) Host() link.Carrier { return hostEnd{s} }

// Guest is the carrier of the guest's end.
func (s *Serial) Guest() *link.SerialPorts {
	return link.NewSerialPorts(s.ports[link.Control], s.ports[link.Bulk])
}

// Port is the guest's file of a channel.
func (s *Serial) Port(ch link.Channel) *SerialPort { return s.ports[ch] }

type hostEnd struct{ s *Serial }

func (h hostEnd) Open(_ context.Context, ch link.Channel) (net.Conn, error) {
	mine, device, err := SocketPair()
	if err != nil {
		return nil, err
	}
	h.s.ports[ch].connect(device)
	return mine, nil
}

// SerialPort is one port as the guest sees it.
type SerialPort struct {
	mu       sync.Mutex // guards what follows
	change   chan struct{}
	host     net.Conn // the device's end of the host's socket
	pumps    *sync.WaitGroup
	toGuest  []byte
	toHost   []byte
	closed   bool
	readEnd  deadline
	writeEnd deadline
}

var _ link.Port = (*SerialPort)(nil)

func newSerialPort() *SerialPort { return &SerialPort{change: make(chan struct{})} }

// changed wakes everyone who waits for the state. Called with mu held.
func (p *SerialPort) changed() {
	close(p.change)
	p.change = make(chan struct{})
}

// wait lets go of mu until the state changes or the deadline passes.
func (p *SerialPort) wait(d *deadline) {
	change := p.change
	var timeout <-chan time.Time
	if d != nil && !d.t.IsZero() {
		timer := time.NewTimer(time.Until(d.t))
		defer timer.Stop()
		timeout = timer.C
	}
	p.mu.Unlock()
	select {
	case <-change:
	case <-timeout:
	}
	p.mu.Lock()
}

type deadline struct{ t time.Time }

func (d *deadline) passed() bool { return !d.t.IsZero() && !time.Now().Before(d.t) }

func (p *SerialPort) connect(device net.Conn) {
	p.Disconnect()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.host, p.pumps = device, new(sync.WaitGroup)
	p.pumps.Go(func() { p.pumpIn(device) })
	p.pumps.Go(func() { p.pumpOut(device) })
	p.changed()
}

// Disconnect takes the host away, as its death does.
func (p *SerialPort) Disconnect() {
	p.mu.Lock()
	host, pumps := p.host, p.pumps
	p.drop(host)
	p.mu.Unlock()
	if pumps != nil {
		pumps.Wait()
	}
}

// drop forgets the host. Called with mu held.
func (p *SerialPort) drop(host net.Conn) {
	if host != nil && p.host == host {
		host.Close()
		p.host = nil
		p.changed()
	}
}

func (p *SerialPort) pumpIn(host net.Conn) {
	buf := make([]byte, 4<<10) // the driver's buffers are pages
	for {
		n, err := host.Read(buf)
		p.mu.Lock()
		p.toGuest = append(p.toGuest, buf[:n]...)
		p.changed()
		for len(p.toGuest) > queueLen && p.host == host {
			p.wait(nil)
		}
		if err != nil || p.host != host {
			p.drop(host)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

func (p *SerialPort) pumpOut(host net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.host == host {
		if len(p.toHost) == 0 {
			p.wait(nil)
			continue
		}
		chunk := p.toHost
		p.mu.Unlock()
		n, err := host.Write(chunk)
		p.mu.Lock()
		p.toHost = p.toHost[n:]
		p.changed()
		if err != nil {
			p.drop(host)
		}
	}
}

// Queue puts bytes of an older link into the queues.
func (p *SerialPort) Queue(toGuest, toHost []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toGuest = append(p.toGuest, toGuest...)
	p.toHost = append(p.toHost, toHost...)
	p.changed()
}

func (p *SerialPort) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closed:
			return 0, os.ErrClosed
		case p.readEnd.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p.toGuest) > 0:
			n := copy(b, p.toGuest)
			p.toGuest = p.toGuest[n:]
			p.changed()
			return n, nil
		case p.host == nil:
			return 0, io.EOF
		}
		p.wait(&p.readEnd)
	}
}

func (p *SerialPort) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for written := 0; ; {
		switch {
		case p.closed:
			return written, os.ErrClosed
		case p.writeEnd.passed():
			return written, os.ErrDeadlineExceeded
		case written == len(b):
			return written, nil
		case p.host != nil && len(p.toHost) < queueLen:
			n := min(len(b)-written, 32<<10) // as the driver does
			p.toHost = append(p.toHost, b[written:written+n]...)
			written += n
			p.changed()
			continue
		}
		p.wait(&p.writeEnd)
	}
}

// Close closes the guest's file.
func (p *SerialPort) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.changed()
	return nil
}

// Name is that of no device.
func (p *SerialPort) Name() string { return "serial" }

// SetDeadline sets both deadlines.
func (p *SerialPort) SetDeadline(t time.Time) error { return p.set(t, &p.readEnd, &p.writeEnd) }

// SetReadDeadline bounds Reads.
func (p *SerialPort) SetReadDeadline(t time.Time) error { return p.set(t, &p.readEnd) }

// SetWriteDeadline bounds Writes.
func (p *SerialPort) SetWriteDeadline(t time.Time) error { return p.set(t, &p.writeEnd) }

func (p *SerialPort) set(t time.Time, ends ...*deadline) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return os.ErrClosed
	}
	for _, d := range ends {
		d.t = t
	}
	p.changed()
	return nil
}
