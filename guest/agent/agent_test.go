package agent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/guest/agent"
	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// guest is an agent with a fake freezer, reached over unix sockets.
type guest struct {
	t      *testing.T
	dir    string
	socket string
	stop   context.CancelFunc
	done   chan error

	mu       sync.Mutex
	log      []string // what was done, in order
	notFixed error
	frozen   chan struct{} // a Freeze waits for it, if not nil
}

func (g *guest) note(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log = append(g.log, what)
}

func (g *guest) done1(what string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.log {
		if l == what {
			return true
		}
	}
	return false
}

// The guest is its own keeper, freezer and fixer.
func (g *guest) Keep(r keep.Record) error { g.note("keep " + string(r.Timeline)); return nil }
func (g *guest) Thaw() error              { g.note("unfreeze"); return nil }
func (g *guest) Freeze(ctx context.Context) error {
	if g.frozen != nil {
		select {
		case <-g.frozen:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	g.note("freeze")
	return nil
}
func (g *guest) Clock(int64, int64) error { return nil }
func (g *guest) Monotonic() int64         { return 7 }
func (g *guest) Fix(*protocol.Thaw, bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log = append(g.log, "fix")
	return g.notFixed
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ag")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func startGuest(t *testing.T, change func(*guest, *agent.Config)) *guest {
	t.Helper()
	dir := shortDir(t)
	g := &guest{t: t, dir: dir, socket: filepath.Join(dir, "agent.sock"), done: make(chan error, 1)}
	l, err := link.ListenUnix(filepath.Join(dir, "control"), filepath.Join(dir, "bulk"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := agent.Config{
		First:  keep.First{Start: 1, Record: keep.Record{Timeline: parent}},
		Keeper: g, Users: g, Fixer: g, Socket: g.socket, Accept: agent.Carrier(l, link.Options{}),
	}
	if change != nil {
		change(g, &cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	a := agent.New(cfg)
	go func() { g.done <- a.Run(ctx) }()
	for { // the socket is there a moment before it listens
		if c, err := net.Dial("unix", g.socket); err == nil {
			c.Close()
			break
		}
		time.Sleep(time.Millisecond)
	}
	t.Cleanup(func() {
		cancel()
		select {
		case <-g.done:
		case <-time.After(30 * time.Second):
			t.Error("the agent does not end")
		}
		l.Close()
	})
	return g
}

func (g *guest) client() *client.Client { return client.New(client.Options{Socket: g.socket}) }

// host is the host's end of a link.
type host struct {
	t     *testing.T
	l     *link.Link
	hello *protocol.Hello
}

func (g *guest) connect() *host {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 30*time.Second)
	defer cancel()
	l, err := link.Connect(ctx, &link.UnixDialer{Control: filepath.Join(g.dir, "control"), Bulk: filepath.Join(g.dir, "bulk")}, link.Options{})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { l.Close() })
	h := &host{t: g.t, l: l}
	h.hello = expect[*protocol.Hello](h)
	return h
}

func expect[M protocol.Message](h *host) M {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	m, err := h.l.Receive(ctx)
	if err != nil {
		h.t.Fatalf("receive: %v", err)
	}
	got, ok := m.(M)
	if !ok {
		h.t.Fatalf("received %s %+v", m.Type(), m)
	}
	return got
}

func (h *host) send(m protocol.Message) {
	h.t.Helper()
	if err := h.l.Send(h.t.Context(), m); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) quiesce(f protocol.Freeze, key protocol.Key) {
	h.t.Helper()
	h.send(&protocol.Prepare{Freeze: f, Key: key})
	expect[*protocol.Drained](h)
	// The guest may have ended the link before Send returns.
	h.l.Send(h.t.Context(), &protocol.AckPosition{Freeze: f})
	expect[*protocol.Quiesced](h)
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	if err := h.l.AwaitEnd(ctx); err != nil {
		h.t.Fatal(err)
	}
	h.l.Close()
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// later runs f beside the test and gives its result.
func later[T any](f func() (T, error)) <-chan error {
	c := make(chan error, 1)
	go func() { _, err := f(); c <- err }()
	return c
}

func TestSnapshotOverALink(t *testing.T) {
	t.Parallel()
	g := startGuest(t, nil)
	h := g.connect()
	type ret struct {
		cp  client.Checkpoint
		err error
	}
	got := make(chan ret, 1)
	c := g.client()
	before := c.Rand().Uint64()
	go func() {
		cp, err := c.Snapshot(t.Context(), client.SnapshotOptions{Label: "one"})
		got <- ret{cp, err}
	}()
	call := expect[*protocol.Call](h)
	var args protocol.SnapshotArgs
	if err := wire.Unmarshal(call.Arguments, &args); err != nil || args.Label != "one" {
		t.Fatalf("arguments: %+v, %v", args, err)
	}
	h.quiesce(1, call.Key)
	h = g.connect()
	if h.hello.State != protocol.StateQuiesced || len(h.hello.Pending) != 1 {
		t.Fatalf("hello: %+v", h.hello)
	}
	h.send(&protocol.Thaw{Freeze: 1, Timeline: child, Key: call.Key, Reason: protocol.ReasonRestore,
		Outcome: &protocol.Outcome{Value: encoded(t, protocol.SnapshotResult{ID: "cp-x", Restored: true, Payload: encoded(t, "hi")})}})
	expect[*protocol.Thawed](h)
	r := <-got
	if r.err != nil || !r.cp.Restored || r.cp.ID != "cp-x" {
		t.Fatalf("snapshot: %+v, %v", r.cp, r.err)
	}
	if p, err := r.cp.Payload.Any(); p != "hi" || err != nil {
		t.Errorf("payload: %v, %v", p, err)
	}
	if c.Rand().Uint64() == before {
		t.Error("Rand repeats itself")
	}
	want := "keep tl-parent freeze keep tl-child fix unfreeze"
	if got := strings.Join(g.log, " "); got != want {
		t.Errorf("done: %s\nwant: %s", got, want)
	}
}

func TestCallsBeforeALink(t *testing.T) {
	t.Parallel()
	g := startGuest(t, nil)
	done := later(func() (protocol.TreeResult, error) { return g.client().Tree(t.Context()) })
	time.Sleep(50 * time.Millisecond) // so that it is usually there before the link
	h := g.connect()
	call := expect[*protocol.Call](h)
	h.send(&protocol.Outcome{Key: call.Key, Error: protocol.Errorf(protocol.CodeBusy, "later")})
	if err := <-done; protocol.CodeOf(err) != protocol.CodeBusy {
		t.Errorf("tree: %v", err)
	}
}

func TestDeadlineUnfreezes(t *testing.T) {
	t.Parallel()
	g := startGuest(t, func(g *guest, c *agent.Config) {
		c.Deadline = 50 * time.Millisecond
		g.frozen = make(chan struct{})
	})
	h := g.connect()
	done := later(func() (client.Checkpoint, error) { return g.client().Snapshot(t.Context(), client.SnapshotOptions{}) })
	call := expect[*protocol.Call](h)
	h.send(&protocol.Prepare{Freeze: 1, Key: call.Key})
	if f := expect[*protocol.PrepareFailed](h); f.Freeze != 1 || f.Error.Code != protocol.CodePrepareFailed {
		t.Errorf("%+v", f)
	}
	if err := <-done; protocol.CodeOf(err) != protocol.CodePrepareFailed {
		t.Errorf("snapshot: %v", err)
	}
}

func TestNoDeadlineWhenQuiesced(t *testing.T) {
	t.Parallel()
	g := startGuest(t, func(_ *guest, c *agent.Config) { c.Deadline = 300 * time.Millisecond })
	h := g.connect()
	h.quiesce(1, protocol.Key{})
	time.Sleep(500 * time.Millisecond)
	if h = g.connect(); h.hello.State != protocol.StateQuiesced || g.done1("unfreeze") {
		t.Errorf("after the deadline: %+v, %v", h.hello, g.log)
	}
}

func TestLostLinkUnfreezes(t *testing.T) {
	t.Parallel()
	g := startGuest(t, nil)
	h := g.connect()
	h.send(&protocol.Prepare{Freeze: 1})
	expect[*protocol.Drained](h)
	h.l.Close()
	if h = g.connect(); h.hello.State != protocol.StateRunning || h.hello.Freeze != 1 || !g.done1("unfreeze") {
		t.Errorf("hello: %+v, done: %v", h.hello, g.log)
	}
}

func TestIdentityThatCannotBeSet(t *testing.T) {
	t.Parallel()
	g := startGuest(t, func(g *guest, _ *agent.Config) { g.notFixed = errors.New("no clock") })
	h := g.connect()
	h.quiesce(1, protocol.Key{})
	h = g.connect()
	h.send(&protocol.Thaw{Freeze: 1, Timeline: parent})
	if got := expect[*protocol.Hello](h); got.State != protocol.StateQuiesced || g.done1("unfreeze") {
		t.Errorf("users run without identity: %+v, %v", got, g.log)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	g := startGuest(t, nil)
	h := g.connect()
	c := g.client()
	defer c.Close()
	events := make(chan client.Event, 10)
	stop, err := c.OnResume(t.Context(), func(e client.Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
	for f := protocol.Freeze(1); f <= 2; f++ {
		h.quiesce(f, protocol.Key{})
		h = g.connect()
		h.send(&protocol.Thaw{Freeze: f, Timeline: parent, Reason: protocol.ReasonWake, Slept: int64(time.Hour)})
		expect[*protocol.Thawed](h)
		if e := <-events; e.Count != uint64(f) || e.Reason != protocol.ReasonWake || e.Slept != time.Hour {
			t.Errorf("event: %+v", e)
		}
	}
	stop()
}

func TestCallerGoes(t *testing.T) {
	t.Parallel()
	g := startGuest(t, nil)
	h := g.connect()
	ctx, cancel := context.WithCancel(t.Context())
	done := later(func() (protocol.Position, error) { return g.client().Sync(ctx) })
	call := expect[*protocol.Call](h)
	cancel()
	if gone := expect[*protocol.CallGone](h); gone.Key != call.Key {
		t.Errorf("gone: %v", gone.Key)
	}
	if err := <-done; protocol.CodeOf(err) != protocol.CodeCancelled || !errors.Is(err, context.Canceled) {
		t.Errorf("sync: %v", err)
	}
}

func TestAgentEnds(t *testing.T) {
	t.Parallel()
	g := startGuest(t, nil)
	h := g.connect()
	done := later(func() (protocol.Position, error) { return g.client().Sync(t.Context()) })
	expect[*protocol.Call](h)
	g.stop()
	if err := <-done; protocol.CodeOf(err) != protocol.CodeAgentRestarted {
		t.Errorf("sync: %v", err)
	}
}

// raw writes bytes to the local socket and reads the answer.
func (g *guest) raw(b []byte) (protocol.LocalReply, error) {
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		return protocol.LocalReply{}, err
	}
	defer conn.Close()
	go conn.Write(b)
	conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	var r protocol.LocalReply
	err = wire.ReadFrame(conn, &r, protocol.MaxMessage)
	return r, err
}

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// alive checks that a good call is still served; calls and departures of bad
// callers may come before it.
func (g *guest) alive() {
	g.t.Helper()
	h := g.connect()
	defer h.l.Close()
	ctx, cancel := context.WithTimeout(g.t.Context(), 30*time.Second)
	defer cancel()
	go func() {
		for {
			m, err := h.l.Receive(ctx)
			if err != nil {
				return
			}
			if call, ok := m.(*protocol.Call); ok {
				h.l.Send(ctx, &protocol.Outcome{Key: call.Key, Value: []byte{0x80}})
			}
		}
	}()
	if _, err := g.client().Tree(ctx); err != nil {
		g.t.Fatalf("tree: %v", err)
	}
}

func request(t *testing.T, r protocol.LocalRequest) []byte {
	t.Helper()
	return frame(encoded(t, r))
}

func (g *guest) refused(requests map[protocol.Code][][]byte) {
	g.t.Helper()
	for want, list := range requests {
		for i, b := range list {
			r, err := g.raw(b)
			if err != nil || r.Error == nil || r.Error.Code != want {
				g.t.Errorf("%s %d: %+v, %v", want, i, r.Error, err)
			}
		}
	}
	g.alive()
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	tree := protocol.LocalRequest{Version: protocol.Version, Kind: protocol.CallTree}
	old, unknown, bad, long := tree, tree, tree, tree
	old.Version, unknown.Kind = 99, "reboot"
	bad.Arguments, long.Arguments = []byte{0xc1}, make([]byte, protocol.MaxPayload+1)
	startGuest(t, nil).refused(map[protocol.Code][][]byte{
		protocol.CodeProtocol:        {frame([]byte{0xc1}), frame([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})},
		protocol.CodeTooLarge:        {append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 1<<20)...), request(t, long)},
		protocol.CodeVersionMismatch: {request(t, old)},
		protocol.CodeNotSupported:    {request(t, unknown)},
		protocol.CodeInvalidArgument: {request(t, bad)},
	})
}

func TestSlowRequests(t *testing.T) {
	t.Parallel()
	g := startGuest(t, func(_ *guest, c *agent.Config) { c.Patience = time.Second })
	g.refused(map[protocol.Code][][]byte{protocol.CodeTimeout: {nil, {0}, {0, 0, 0, 9, 1}}})
}

func TestManyConnections(t *testing.T) {
	t.Parallel()
	g := startGuest(t, nil)
	var conns []io.Closer
	for i := range 500 {
		conn, err := net.Dial("unix", g.socket)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		conn.Write([]byte{0, 0xff, 0xff, byte(i)}[:i%5%4+1]) // part of a length
	}
	g.alive()
	for _, c := range conns {
		c.Close()
	}
	g.alive()
}

func FuzzLocalSocket(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0xc0})
	b, err := wire.Marshal(protocol.LocalRequest{Version: 1, Kind: protocol.CallTree})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame(b))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := startGuest(t, nil)
		conn, err := net.Dial("unix", g.socket)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write(b)
		conn.Close()
		g.alive()
	})
}
