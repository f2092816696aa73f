package link_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortDir is for sockets, whose paths must be short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "link")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func listenUnix(t *testing.T) (*link.Listener, *link.UnixDialer) {
	t.Helper()
	dir := shortDir(t)
	d := &link.UnixDialer{Control: filepath.Join(dir, "c"), Bulk: filepath.Join(dir, "b")}
	l, err := link.ListenUnix(d.Control, d.Bulk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, d
}

// countFiles is the number of this process's open files.
func countFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// Not parallel: it counts files and goroutines.
func TestReconnectsLeakNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	serial := linktest.NewSerial()
	listener, dialer := listenUnix(t)
	for _, c := range []struct{ host, guest link.Carrier }{{serial.Host(), serial.Guest()}, {dialer, listener}} {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { echo(ctx, c.guest) })
		connectAndPing(t, c.host).Close()
		files, goroutines := countFiles(t), runtime.NumGoroutine()
		for range 500 {
			connectAndPing(t, c.host).Close()
		}
		// A connection of the guest's, being closed just now.
		if n := countFiles(t); n > files+4 {
			t.Errorf("%T: %d files before, %d after", c.host, files, n)
		}
		if n := runtime.NumGoroutine(); n > goroutines+20 {
			t.Errorf("%T: %d goroutines before, %d after", c.host, goroutines, n)
		}
		cancel()
		wg.Wait()
	}
	serial.Port(link.Control).Disconnect()
	serial.Port(link.Bulk).Disconnect()
}

// V14: a dial that fails leaves no file open.
func TestFailedDialsLeakNothing(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answers := []string{"", "OK", "NO 1\n", strings.Repeat("x", 100) + "\n", "OKAY\n"}
	go func() {
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(conn).ReadString('\n')
			io.WriteString(conn, answers[i%len(answers)])
			conn.Close()
		}
	}()
	before := countFiles(t)
	for i := range 2000 {
		hybrid := &link.HybridDialer{Path: path}
		if _, err := hybrid.Open(t.Context(), link.Bulk); err == nil {
			t.Fatal("a refused connection was taken for a good one")
		}
		nobody := &link.UnixDialer{Control: filepath.Join(dir, "none"), Bulk: path}
		if _, err := nobody.Open(t.Context(), link.Control); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("got %v, want not exist", err)
		}
		if i%100 == 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			link.Connect(ctx, hybrid, link.Options{})
			cancel()
		}
	}
	if after := countFiles(t); after > before+2 {
		t.Errorf("%d files before, %d after", before, after)
	}
}

// What the guest says right behind the VMM's answer is not lost.
func TestHybridDialerIsByteExact(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan string, 2)
	guest := make(chan net.Conn, 2)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			line := make([]byte, len("CONNECT 1024\n"))
			io.ReadFull(conn, line)
			asked <- string(line)
			io.WriteString(conn, "OK 1073741824\nhello")
			guest <- conn
		}
	}()
	for ch, port := range map[link.Channel]int{link.Control: protocol.PortControl, link.Bulk: protocol.PortBulk} {
		conn, err := (&link.HybridDialer{Path: path}).Open(t.Context(), ch)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := <-asked, fmt.Sprintf("CONNECT %d\n", port); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
			t.Errorf("got %q, %v", got, err)
		}
		conn.Close()
		(<-guest).Close()
	}
}

// A VMM that takes the connection and says nothing is given up with ctx.
func TestHybridDialerStops(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := (&link.HybridDialer{Path: path}).Open(ctx, link.Control); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
}

// V11: an Accept that waits returns when its listener is closed.
func TestListenerCloseUnblocks(t *testing.T) {
	t.Parallel()
	l, _ := listenUnix(t)
	failed := make(chan error)
	go func() {
		_, err := link.Accept(t.Context(), l, link.Options{})
		failed <- err
	}()
	l.Close()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want net.ErrClosed", err)
	}
	// A context that ends costs the next accept nothing.
	l, d := listenUnix(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Open(ctx, link.Control); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
	startEcho(t, l)
	connectAndPing(t, d).Close()
}

// V13: deadlines of streams are honoured, and lifted again.
func TestStreamDeadlines(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	st, err := host.OpenStream(t.Context(), protocol.Open{Op: protocol.OpExec})
	if err != nil {
		t.Fatal(err)
	}
	_, peer, err := guest.AcceptStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var f protocol.FileFrame
	st.SetDeadline(time.Now().Add(5 * time.Millisecond))
	if err := st.Receive(&f); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("receive: got %v, want os.ErrDeadlineExceeded", err)
	}
	st.SetDeadline(time.Time{})
	if err := peer.Send(&protocol.FileFrame{Done: true}); err != nil {
		t.Fatal(err)
	}
	if err := st.Receive(&f); err != nil || !f.Done {
		t.Errorf("after the deadline was lifted: got %+v, %v", f, err)
	}
	full := &protocol.FileFrame{Data: make([]byte, 1<<20)}
	st.SetDeadline(time.Now().Add(50 * time.Millisecond))
	for err = nil; err == nil; {
		err = st.Send(full) // nobody reads
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("send: got %v, want os.ErrDeadlineExceeded", err)
	}
	if isDone(host) || isDone(guest) {
		t.Error("a deadline of a stream ended the link")
	}
}

// A caller that gives up leaves the link usable, whatever it was sending.
func TestCancelledSend(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	for n := range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*time.Millisecond)
		host.Send(ctx, &protocol.Outcome{Value: make([]byte, 8<<20)})
		cancel()
	}
	if err := host.Send(t.Context(), &protocol.Ping{N: 99}); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := guest.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := m.(*protocol.Ping); ok {
			if p.N != 99 {
				t.Errorf("got ping %d, want 99", p.N)
			}
			return
		}
	}
}

// A file system of the kernel's, for the deadlines of an *os.File.
func TestSerialPortsOnFiles(t *testing.T) {
	t.Parallel()
	var ports, hosts []*os.File
	for range 2 {
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, os.NewFile(uintptr(fds[0]), "port"))
		hosts = append(hosts, os.NewFile(uintptr(fds[1]), "host"))
	}
	guest, host := link.NewSerialPorts(ports[0], ports[1]), link.NewSerialPorts(hosts[0], hosts[1])
	defer guest.Close()
	defer host.Close()
	startEcho(t, guest)
	for range 5 {
		connectAndPing(t, host).Close()
	}
}

// tap counts writes and keeps what was written, per channel.
type tap struct {
	link.Carrier
	mu   sync.Mutex // guards logs
	logs map[link.Channel]*tapLog
}

type tapLog struct {
	net.Conn
	writes atomic.Int64
	mu     sync.Mutex // guards bytes
	bytes  []byte
}

func (c *tap) Open(ctx context.Context, ch link.Channel) (net.Conn, error) {
	conn, err := c.Carrier.Open(ctx, ch)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs[ch] = &tapLog{Conn: conn}
	return c.logs[ch], nil
}

func (l *tapLog) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes.Add(1)
	l.bytes = append(l.bytes, b[:n]...)
	return n, err
}

func TestSmallMessageIsOneWrite(t *testing.T) {
	t.Parallel()
	h, g := linktest.Carriers()
	wire := &tap{Carrier: g, logs: make(map[link.Channel]*tapLog)}
	host, guest := linktest.Connect(t, h, wire, link.Options{})
	control := wire.logs[link.Control]
	before := control.writes.Load()
	const n = 50
	for range n {
		if err := guest.Send(t.Context(), &protocol.Ping{}); err != nil {
			t.Fatal(err)
		}
		if _, err := host.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := control.writes.Load() - before; got != n {
		t.Errorf("%d messages took %d writes", n, got)
	}
}

// In the middle of traffic END is the last record on both connections, and the
// records before it are whole.
func TestNothingFollowsEnd(t *testing.T) {
	t.Parallel()
	for range 20 {
		h, g := linktest.Carriers()
		wire := &tap{Carrier: g, logs: make(map[link.Channel]*tapLog)}
		host, guest := linktest.Connect(t, h, wire, link.Options{})
		var wg sync.WaitGroup
		for range 4 {
			st, err := guest.OpenStream(t.Context(), protocol.Open{Op: protocol.OpFiles})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for st.Send(&protocol.FileFrame{Data: make([]byte, 100<<10)}) == nil {
				}
			})
			_, peer, err := host.AcceptStream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for {
					var f protocol.FileFrame
					if err := peer.Receive(&f); err != nil {
						if err == io.EOF {
							t.Error("the end of a link looks like the end of a stream")
						}
						return
					}
				}
			})
		}
		wg.Go(func() {
			for guest.Send(t.Context(), &protocol.Pong{}) == nil {
			}
		})
		wg.Go(func() {
			for host.Send(t.Context(), &protocol.Ping{}) == nil {
			}
		})
		wg.Go(func() {
			for {
				if _, err := host.Receive(t.Context()); err != nil {
					return
				}
			}
		})
		if err := guest.End(); err != nil {
			t.Fatal(err)
		}
		if err := host.AwaitEnd(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		guest.Close()
		host.Close()
		for ch, l := range wire.logs {
			checkRecords(t, ch, l.bytes)
		}
	}
}

func checkRecords(t *testing.T, ch link.Channel, b []byte) {
	t.Helper()
	for len(b) > 0 {
		typ, n := b[0], int(binary.BigEndian.Uint32(b)&0xffffff)
		if len(b) < 4+n {
			t.Fatalf("%s: a record of type %c is cut", ch, typ)
		}
		b = b[4+n:]
		if typ == 'E' {
			if len(b) > 0 {
				t.Fatalf("%s: %d bytes follow the end", ch, len(b))
			}
			return
		}
	}
	t.Fatalf("%s: no end record", ch)
}

// A peer that dies before its END is not taken for one that ended.
func TestAwaitEndWithoutEnd(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	guest.Close()
	if err := host.AwaitEnd(t.Context()); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("got %v, want %s", err, protocol.CodeUnavailable)
	}
	host, _ = linktest.Pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := host.AwaitEnd(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
}

// V17: the error names the stage that was reached.
func TestConnectNamesTheStage(t *testing.T) {
	t.Parallel()
	listener, dialer := listenUnix(t)
	for want, c := range map[string]link.Carrier{
		"open control connection": &link.UnixDialer{Control: dialer.Control + "x", Bulk: dialer.Bulk},
		"greet the agent":         dialer,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // a guest that takes connections and says nothing
			defer cancel()
			for _, ch := range []link.Channel{link.Bulk, link.Control} {
				if conn, err := listener.Open(ctx, ch); err == nil {
					defer conn.Close()
				}
				if c != dialer {
					return
				}
			}
		}()
		_, err := link.Connect(ctx, c, link.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, context.Canceled) ||
			protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("got %v, want %q, %s", err, want, protocol.CodeUnavailable)
		}
	}
}

// The limit on streams is an error for the one who opens, not the end.
func TestStreamLimit(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	startDrain(t, guest)
	var open []*link.Stream
	for range protocol.MaxStreams {
		st, err := host.OpenStream(t.Context(), protocol.Open{Op: protocol.OpExec})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	if _, err := host.OpenStream(t.Context(), protocol.Open{Op: protocol.OpExec}); protocol.CodeOf(err) != protocol.CodeBusy {
		t.Errorf("got %v, want %s", err, protocol.CodeBusy)
	}
	for _, st := range open {
		st.Close()
	}
	for {
		st, err := host.OpenStream(t.Context(), protocol.Open{Op: protocol.OpExec})
		if err == nil {
			st.Close()
			return
		}
		if protocol.CodeOf(err) != protocol.CodeBusy {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
}

// startDrain takes streams and closes each when its peer does.
func startDrain(t *testing.T, l *link.Link) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			_, st, err := l.AcceptStream(context.Background())
			if err != nil {
				return
			}
			wg.Go(func() {
				var v any
				for st.Receive(&v) == nil {
				}
				st.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
}
