package hostile_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/journal"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
)

// template is what every sandbox starts from.
const template = protocol.CheckpointID("cp-aaaaaaaaaaaaaaaa")

// stall bounds a frame on links to hostile guests.
const stall = 300 * time.Millisecond

// host is what the sandboxes of one test share.
type host struct {
	db *journal.DB
}

func newHost(t *testing.T) *host {
	db, err := journal.Open(filepath.Join(t.TempDir(), "journal.db"), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &host{db}
}

// start starts a sandbox whose machines hold guests that make makes.
func (h *host) start(ctx context.Context, timeouts sandbox.Timeouts, make func() *guest) (*sandbox.Sandbox, error) {
	id := protocol.NewSandboxID()
	deps := sandbox.Deps{Machines: machines{make}, Checkpoints: newShelf(), Journal: h.db.Sandbox(id), Timeouts: timeouts}
	return sandbox.Start(ctx, deps, id, sandbox.Spec{Template: template, MemoryBytes: 1 << 20})
}

// machines makes machines that are goroutines.
type machines struct{ make func() *guest }

var _ sandbox.Machines = machines{}

func (m machines) Load(_ context.Context, r sandbox.LoadRequest) (sandbox.VM, error) {
	hostEnd, guestEnd := linktest.Carriers()
	v := &vm{id: r.VM, carrier: hostEnd, done: make(chan struct{}), guest: m.make()}
	var ctx context.Context
	ctx, v.kill = context.WithCancel(context.Background())
	v.guest.state, v.guest.freeze = protocol.StateQuiesced, 1
	v.all.Go(func() { v.guest.run(ctx, &tapped{Carrier: guestEnd, conns: map[link.Channel]net.Conn{}}) })
	return v, nil
}

func (m machines) Adopt(context.Context, sandbox.VMRecord) (sandbox.VM, error) { return nil, nil }
func (m machines) Sweep(context.Context, sandbox.VMRecord) error               { return nil }

// vm is one machine.
type vm struct {
	id      protocol.VMID
	carrier link.Carrier
	guest   *guest
	links   atomic.Int64
	kill    context.CancelFunc
	all     sync.WaitGroup
	ending  sync.Once
	done    chan struct{}
}

func (v *vm) ID() protocol.VMID            { return v.id }
func (v *vm) PID() int                     { return 1 }
func (v *vm) StartTime() uint64            { return 1 }
func (v *vm) Pause(context.Context) error  { return nil }
func (v *vm) Resume(context.Context) error { return nil }
func (v *vm) Done() <-chan struct{}        { return v.done }
func (v *vm) Err() error                   { return errors.New("killed") }

func (v *vm) Connect(ctx context.Context) (sandbox.Link, error) {
	v.links.Add(1)
	l, err := link.Connect(ctx, v.carrier, link.Options{Stall: stall})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (v *vm) Kill() error {
	v.ending.Do(func() {
		v.kill()
		v.all.Wait()
		close(v.done)
	})
	return nil
}

// tapped remembers the raw connections of the guest's end.
type tapped struct {
	link.Carrier

	mu    sync.Mutex // guards what follows
	conns map[link.Channel]net.Conn
	trick func(net.Conn) net.Conn
}

func (c *tapped) Open(ctx context.Context, ch link.Channel) (net.Conn, error) {
	conn, err := c.Carrier.Open(ctx, ch)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[ch] = conn
	if c.trick != nil {
		return c.trick(conn), nil
	}
	return conn, nil
}

func (c *tapped) raw(ch link.Channel) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conns[ch]
}

// shelf holds checkpoints without content.
type shelf struct {
	mu  sync.Mutex // guards all
	all []sandbox.Checkpoint
}

var _ sandbox.Checkpoints = (*shelf)(nil)

func newShelf() *shelf {
	return &shelf{all: []sandbox.Checkpoint{{ID: template, Class: sandbox.ClassNamed, Created: time.Now(), Freeze: 1, Durable: true}}}
}

type capture struct {
	s *shelf
	c sandbox.Checkpoint
}

func (s *shelf) Capture(_ context.Context, _ sandbox.VM, c sandbox.Checkpoint) (sandbox.Capture, error) {
	return capture{s, c}, nil
}

func (c capture) Bytes() int64 { return 0 }
func (c capture) Discard()     {}

func (c capture) Publish(context.Context) (sandbox.Checkpoint, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.all = append(c.s.all, c.c)
	return c.c, nil
}

func (s *shelf) Get(_ context.Context, id protocol.CheckpointID) (sandbox.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(id); i >= 0 {
		return s.all[i], nil
	}
	return sandbox.Checkpoint{}, protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s", id)
}

func (s *shelf) find(id protocol.CheckpointID) int {
	return slices.IndexFunc(s.all, func(c sandbox.Checkpoint) bool { return c.ID == id })
}

func (s *shelf) Check(ctx context.Context, id protocol.CheckpointID) error {
	_, err := s.Get(ctx, id)
	return err
}

func (s *shelf) Durable(_ context.Context, id protocol.CheckpointID) error {
	return s.change(id, func(c *sandbox.Checkpoint) { c.Durable = true })
}

func (s *shelf) SetClass(_ context.Context, id protocol.CheckpointID, class sandbox.Class) error {
	return s.change(id, func(c *sandbox.Checkpoint) { c.Class = class })
}

func (s *shelf) change(id protocol.CheckpointID, f func(*sandbox.Checkpoint)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(id); i >= 0 {
		f(&s.all[i])
	}
	return nil
}

func (s *shelf) Remove(_ context.Context, id protocol.CheckpointID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(c sandbox.Checkpoint) bool { return c.ID == id })
	return nil
}

func (s *shelf) List(context.Context) ([]sandbox.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all[1:]), nil
}

func (s *shelf) Sweep(context.Context) error { return nil }
func (s *shelf) Room(context.Context) error  { return nil }
