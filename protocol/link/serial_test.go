package link_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
)

// echo answers pings on links that it accepts until ctx ends.
func echo(ctx context.Context, c link.Carrier) {
	for ctx.Err() == nil {
		l, err := link.Accept(ctx, c, link.Options{})
		if err != nil {
			continue
		}
		for {
			m, err := l.Receive(ctx)
			if err != nil {
				break
			}
			if p, ok := m.(*protocol.Ping); ok {
				l.Send(ctx, &protocol.Pong{N: p.N})
			}
		}
		l.Close()
	}
}

// startEcho runs echo until the end of the test.
func startEcho(t testing.TB, c link.Carrier) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { echo(ctx, c) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// ping sends a ping and waits for its pong.
func ping(ctx context.Context, l *link.Link, n uint64) error {
	if err := l.Send(ctx, &protocol.Ping{N: n}); err != nil {
		return err
	}
	m, err := l.Receive(ctx)
	if err != nil {
		return err
	}
	if p, ok := m.(*protocol.Pong); !ok || p.N != n {
		return errors.New("answer to another ping")
	}
	return nil
}

// connectAndPing fails the test when a link cannot be made and used.
func connectAndPing(t testing.TB, c link.Carrier) *link.Link {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// The guest may still be on the link before this one when it connects, and
	// then gives it up: the owner of a link tries again.
	for {
		l, err := link.Connect(ctx, c, link.Options{})
		if err != nil {
			t.Fatalf("connect: %v", err)
		}
		err = ping(ctx, l, 1)
		if err == nil {
			return l
		}
		l.Close()
		if ctx.Err() != nil {
			t.Fatalf("ping: %v", err)
		}
	}
}

func TestSerialReconnects(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	startEcho(t, s.Guest())
	for range 20 {
		connectAndPing(t, s.Host()).Close()
	}
}

// What an older link left in the queues, in every order and in parts, does not
// keep a new one from starting.
func TestSerialResync(t *testing.T) {
	t.Parallel()
	half := link.SYN(1, 2)
	scraps := rapid.SampledFrom([][]byte{
		link.SYN(1, 2), link.ACK(1, 2, 3), half[:3], half[:9], half[:len(half)-1],
		bytes.Replace(half, []byte{1}, []byte{9}, 1), // a wrong checksum
		link.Record('D', bytes.Repeat([]byte("x"), 5000)), link.Record('D', nil), link.Record('E', nil),
		link.Record('D', make([]byte, link.MaxRecord))[:link.MaxRecord/2],
		append([]byte("SSSA\x00\x00"), half[4:10]...), make([]byte, 100<<10),
	})
	rapid.Check(t, func(rt *rapid.T) {
		s := linktest.NewSerial()
		for _, ch := range []link.Channel{link.Control, link.Bulk} {
			var queues [2][]byte
			for i := range queues {
				queues[i] = bytes.Join(rapid.SliceOfN(scraps, 0, 4).Draw(rt, "scraps"), nil)
			}
			s.Port(ch).Queue(queues[0], queues[1])
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { echo(ctx, s.Guest()) })
		connectAndPing(t, s.Host()).Close()
		cancel()
		wg.Wait()
	})
}

// cutCarrier lets each connection write a number of bytes and then dies.
type cutCarrier struct {
	link.Carrier
	left map[link.Channel]int
}

type cutConn struct {
	net.Conn
	mu   sync.Mutex // guards left
	left int
}

func (c *cutCarrier) Open(ctx context.Context, ch link.Channel) (net.Conn, error) {
	conn, err := c.Carrier.Open(ctx, ch)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, left: c.left[ch]}, nil
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(b), c.left)
	c.left -= n
	n, err := c.Conn.Write(b[:n])
	if err == nil && n < len(b) {
		c.Conn.Close()
		err = net.ErrClosed
	}
	return n, err
}

// A host that dies after any number of bytes, of the handshake or later, does
// not keep the next one from getting a link.
func TestSerialHostVanishes(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	startEcho(t, s.Guest())
	for n := 0; n < 250; n += 3 {
		c := &cutCarrier{s.Host(), map[link.Channel]int{link.Control: n, link.Bulk: 250 - n}}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if l, err := link.Connect(ctx, c, link.Options{}); err == nil {
			ping(ctx, l, 7)
			l.Close()
		}
		cancel()
		if n%5 == 0 {
			connectAndPing(t, s.Host()).Close()
		}
	}
}

// A new host whose predecessor's end the guest never noticed.
func TestSerialSynInEstablishedLink(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	ctx := t.Context()
	host, guest := linktest.Connect(t, s.Host(), s.Guest(), link.Options{})
	control, err := s.Host().Open(ctx, link.Control) // replaces the host
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	if _, err := control.Write(link.SYN(1, 2)); err != nil {
		t.Fatal(err)
	}
	if m, err := guest.Receive(ctx); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("guest: got %v, %v, want %s", m, err, protocol.CodeUnavailable)
	}
	<-host.Done()
}

// A new guest worker on ports whose host still has a link with the old one.
func TestSerialGuestRestarts(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	ports := s.Guest()
	host, guest := linktest.Connect(t, s.Host(), ports, link.Options{})
	guest.Close()
	if isDone(host) {
		t.Fatal("the host sees a close, which virtio-serial does not show")
	}
	startEcho(t, ports)
	<-host.Done()
	if protocol.CodeOf(host.Err()) != protocol.CodeUnavailable {
		t.Errorf("host: got %v, want %s", host.Err(), protocol.CodeUnavailable)
	}
	host.Close()
	connectAndPing(t, s.Host()).Close()
}

func isDone(l *link.Link) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

// Both ends restart at random times, and agree again whenever they are let.
func TestSerialBothEndsRestart(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	ports := s.Guest()
	for round := range 30 {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { echo(ctx, ports) })
		short, stop := context.WithTimeout(ctx, time.Duration(round)*200*time.Microsecond)
		if l, err := link.Connect(short, s.Host(), link.Options{}); err == nil {
			ping(short, l, 1)
			l.Close()
		}
		stop()
		if round%3 == 0 {
			connectAndPing(t, s.Host()).Close()
		}
		cancel()
		wg.Wait()
	}
	startEcho(t, ports)
	connectAndPing(t, s.Host()).Close()
}

// Close gives a port back at once, whoever waits on it, and leaves it usable.
func TestSerialCloseInterrupts(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	ports := s.Guest()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := link.Accept(ctx, ports, link.Options{}) // waits to write: no host
	if !errors.Is(err, context.DeadlineExceeded) || protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("without a host: got %v, want %s for a deadline", err, protocol.CodeUnavailable)
	}
	conn, err := ports.Open(t.Context(), link.Control)
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error)
	go func() {
		_, err := conn.Write([]byte("x"))
		written <- err
	}()
	conn.Close()
	if err := <-written; !errors.Is(err, net.ErrClosed) {
		t.Errorf("interrupted write: got %v, want net.ErrClosed", err)
	}
	if err := conn.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed connection changed the port: %v", err)
	}
	startEcho(t, ports)
	connectAndPing(t, s.Host()).Close()
}

// capturedPort is the port of a machine that is captured when the last END is
// out: its write returns only after the machine was loaded again and a new host
// has written.
type capturedPort struct {
	link.Port
	loaded chan struct{}
}

func (p *capturedPort) Write(b []byte) (int, error) {
	n, err := p.Port.Write(b)
	if bytes.Equal(b, link.Record('E', nil)) {
		<-p.loaded
	}
	return n, err
}

// onceCarrier writes what begins a connection a single time, and tells then
// that it has.
type onceCarrier struct {
	link.Carrier
	said func()
}

type onceConn struct {
	net.Conn
	said func()
	once atomic.Bool
}

func (c onceCarrier) Open(ctx context.Context, ch link.Channel) (net.Conn, error) {
	conn, err := c.Carrier.Open(ctx, ch)
	if err != nil {
		return nil, err
	}
	return &onceConn{Conn: conn, said: c.said}, nil
}

func (c *onceConn) Write(b []byte) (int, error) {
	if !bytes.HasPrefix(b, link.SYN(1, 2)[:4]) {
		return c.Conn.Write(b)
	}
	if c.once.Swap(true) {
		return len(b), nil
	}
	defer c.said()
	return c.Conn.Write(b)
}

// Nothing of the link before may swallow the new host's SYN: waiting for the
// next one would be most of what a restore takes.
func TestSerialFirstSynAfterCapture(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	loaded := make(chan struct{})
	load := sync.OnceFunc(func() { close(loaded) })
	ports := link.NewSerialPorts(&capturedPort{s.Port(link.Control), loaded}, s.Port(link.Bulk))
	host, guest := linktest.Connect(t, s.Host(), ports, link.Options{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := guest.End(); err != nil {
			t.Errorf("end: %v", err)
		}
		startEcho(t, ports)
	})
	defer wg.Wait()
	defer load()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := host.AwaitEnd(ctx); err != nil {
		t.Fatal(err)
	}
	host.Close()
	l, err := link.Connect(ctx, onceCarrier{s.Host(), load}, link.Options{})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer l.Close()
	if err := ping(ctx, l, 1); err != nil {
		t.Errorf("ping: %v", err)
	}
}

// brokenPort is a port whose writes fail from a moment on, each after a while.
type brokenPort struct {
	link.Port
	broken  atomic.Bool
	writing chan struct{}
	fail    chan struct{}
}

func (p *brokenPort) Write(b []byte) (int, error) {
	if !p.broken.Load() {
		return p.Port.Write(b)
	}
	p.writing <- struct{}{}
	<-p.fail
	return 0, syscall.EIO
}

// An End that comes to nothing on one port gives both back.
func TestSerialEndFails(t *testing.T) {
	t.Parallel()
	s := linktest.NewSerial()
	control := &brokenPort{Port: s.Port(link.Control), writing: make(chan struct{}), fail: make(chan struct{})}
	ports := link.NewSerialPorts(control, s.Port(link.Bulk))
	host, guest := linktest.Connect(t, s.Host(), ports, link.Options{})
	control.broken.Store(true)
	go guest.Send(t.Context(), &protocol.Pong{})
	<-control.writing
	ended := make(chan error)
	go func() { ended <- guest.End() }()
	time.Sleep(20 * time.Millisecond) // it waits for the write
	control.broken.Store(false)
	close(control.fail)
	host.Close()
	if err := <-ended; err == nil {
		t.Error("END follows a record that was cut")
	}
	startEcho(t, ports)
	connectAndPing(t, s.Host()).Close()
}

func TestFindPort(t *testing.T) {
	t.Parallel()
	class := t.TempDir()
	for dev, name := range map[string]string{"vport1p1": protocol.SerialControl, "vport1p2": protocol.SerialBulk} {
		if err := os.Mkdir(filepath.Join(class, dev), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(class, dev, "name"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if dev, err := link.FindPort(class, protocol.SerialBulk); err != nil || dev != "vport1p2" {
		t.Errorf("got %q, %v", dev, err)
	}
	if _, err := link.FindPort(class, "other"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want not exist", err)
	}
}
