package exec

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Bounds of a Manager.
const (
	maxLive = 512 // programs of which a process or a pipe is left
	maxKept = 64  // programs that have ended
)

// Config tells a Manager how to run programs. The zero value is usable.
type Config struct {
	// CgroupRoot is a version 2 cgroup in which each program gets its own,
	// named after its id. "" uses process groups, which a program can leave.
	CgroupRoot string
	// Dir is where programs start that name no directory; "" is /workspace.
	Dir string
	// Env is the image's environment. HOME and USER come from the account.
	Env map[string]string
	// AccountDir holds passwd and group; "" is /etc.
	AccountDir string
	// RingSize is the capacity of each output stream; 0 is 256 KiB.
	RingSize int
	// RingBudget is the memory of all rings beyond 4 KiB each; 0 is 16 MiB.
	RingBudget int64
	// Grace is how long output of lingering descendants still belongs to a
	// program after its main process's end; 0 is 50 ms.
	Grace time.Duration
	// Log gets what no stream can be told; nil discards.
	Log *slog.Logger
}

// Manager runs programs. Make one with New, end it with Close.
type Manager struct {
	cfg      Config
	log      *slog.Logger
	budget   budget
	closing  chan struct{}
	watchers sync.WaitGroup

	mu       sync.Mutex // before program.mu
	programs map[protocol.ExecID]*entry
	live     map[*program]struct{} // not yet released
	kept     []*program            // finished, oldest first
	stale    []cgroup              // of released programs
	starting int
	idle     chan struct{} // closed when starting falls to 0; nil unless awaited
	held     bool
	closed   bool
}

// entry is a program by its id; ready is closed when program or err is set.
type entry struct {
	ready   chan struct{}
	program *program
	err     error
}

// New makes a Manager without programs.
func New(cfg Config) *Manager {
	if cfg.Dir == "" {
		cfg.Dir = protocol.GuestWorkspace
	}
	if cfg.AccountDir == "" {
		cfg.AccountDir = "/etc"
	}
	if cfg.RingSize == 0 {
		cfg.RingSize = 256 << 10
	}
	if cfg.RingBudget == 0 {
		cfg.RingBudget = 16 << 20
	}
	if cfg.Grace == 0 {
		cfg.Grace = 50 * time.Millisecond
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		cfg: cfg, log: cfg.Log, budget: budget{total: cfg.RingBudget},
		closing:  make(chan struct{}),
		programs: map[protocol.ExecID]*entry{},
		live:     map[*program]struct{}{},
	}
}

// open finds the program that a stream is for, and starts it if need be.
func (m *Manager) open(ctx context.Context, open protocol.ExecOpen) (*program, error) {
	id, err := protocol.ParseExecID(string(open.ID))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	e, known := m.programs[id]
	if !known {
		e, err = m.admit(id, open.Start)
	}
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !known {
		m.start(id, open.Start, e)
	}
	select {
	case <-e.ready:
		return e.program, e.err
	case <-ctx.Done():
		return nil, protocol.Errorf(protocol.CodeCancelled, "attach to program %s: %v", id, context.Cause(ctx))
	}
}

// admit makes the entry of a program to be started. The caller holds m.mu.
func (m *Manager) admit(id protocol.ExecID, spec *protocol.ExecSpec) (*entry, error) {
	switch {
	case spec == nil:
		return nil, protocol.Errorf(protocol.CodeNotFound, "no program %s in this guest, or it ended long ago", id)
	case m.closed:
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the agent in the guest stops")
	case m.held || frozen(m.cfg.CgroupRoot):
		return nil, protocol.Errorf(protocol.CodeBusy, "no program can be started during a capture")
	case len(m.live)+m.starting >= maxLive:
		return nil, protocol.Errorf(protocol.CodeBusy, "%d programs run, no more can be started", maxLive).With("limit", maxLive)
	}
	e := &entry{ready: make(chan struct{})}
	m.programs[id] = e
	m.starting++
	return e, nil
}

func (m *Manager) start(id protocol.ExecID, spec *protocol.ExecSpec, e *entry) {
	p, err := m.launch(id, spec)
	m.mu.Lock()
	defer m.mu.Unlock()
	e.program, e.err = p, err
	if err != nil {
		delete(m.programs, id)
	}
	if m.starting--; m.starting == 0 && m.idle != nil {
		close(m.idle)
		m.idle = nil
	}
	close(e.ready)
}

// finished keeps an ended program and forgets others if there are too many:
// the oldest that the host knows all about, else the oldest to which no stream
// is attached.
func (m *Manager) finished(p *program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = append(m.kept, p)
	for len(m.kept) > maxKept {
		victim := slices.IndexFunc(m.kept, (*program).acknowledged)
		if victim < 0 {
			victim = slices.IndexFunc(m.kept, (*program).detached)
		}
		if victim < 0 {
			return
		}
		old := m.kept[victim]
		m.kept = slices.Delete(m.kept, victim, victim+1)
		delete(m.programs, old.id)
		old.forget()
	}
}

// released is called when the main process is gone and all pipes are at their
// end. A daemon that the program left keeps the cgroup; its removal is tried
// again whenever another program is released.
func (m *Manager) released(p *program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, p)
	m.stale = slices.DeleteFunc(append(m.stale, p.cgroup), func(c cgroup) bool { return c.remove() == nil })
}

// all is every program that is running or remembered.
func (m *Manager) all() []*program {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*program
	for _, e := range m.programs {
		if e.program != nil {
			out = append(out, e.program)
		}
	}
	slices.SortFunc(out, func(a, b *program) int { return strings.Compare(string(a.id), string(b.id)) })
	return out
}

func (m *Manager) get(id protocol.ExecID) *program {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.programs[id]; e != nil {
		return e.program
	}
	return nil
}

// running is every program of which a process or a pipe may be left.
func (m *Manager) running() []*program {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.live))
}

// Quiesce refuses starts, waits for those under way, and stops all movement of
// input and output until Resume; only Pump still reads. It must come before
// the user cgroup is frozen: a process born frozen would stop this one too. On
// error nothing is held.
func (m *Manager) Quiesce(ctx context.Context) error {
	m.mu.Lock()
	m.held = true
	m.mu.Unlock()
	if err := m.started(ctx); err != nil {
		m.Resume()
		return protocol.Errorf(protocol.CodePrepareFailed, "a program was being started: %v", err)
	}
	for _, p := range m.running() {
		p.hold()
	}
	return nil
}

// started waits until no start is under way.
func (m *Manager) started(ctx context.Context) error {
	m.mu.Lock()
	if m.starting == 0 {
		m.mu.Unlock()
		return nil
	}
	if m.idle == nil {
		m.idle = make(chan struct{})
	}
	idle := m.idle
	m.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Resume ends Quiesce. Time-outs that passed meanwhile strike now.
func (m *Manager) Resume() {
	m.mu.Lock()
	m.held = false
	m.mu.Unlock()
	for _, p := range m.running() {
		p.unhold()
	}
}

// delivery bounds how long Pump waits for the host to take output: one whose
// own output is blocked must not keep the machine from being stopped.
const delivery = time.Second

// Pump moves what is in the pipes to the rings, and waits until the host has
// it all, where a host is attached: a timeline that ends after this freeze
// would take the rest with it. It gives up when ctx ends, and on output that
// nobody takes within a second.
func (m *Manager) Pump(ctx context.Context) {
	until := time.Now().Add(delivery)
	for {
		owed := false
		for _, p := range m.all() {
			for _, o := range p.outs {
				p.pump(o)
			}
			owed = p.owes() || owed
		}
		if !owed || time.Now().After(until) {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// unfollowed is how long Deliver waits for a host that is not attached: a link
// was lost, or the machine is a copy that the host has yet to attach to.
const unfollowed = 5 * time.Second

// Deliver waits until the host has all that programs have written so far. It
// waits as long as a host that is attached takes, since a program that prints
// would too; it gives up on output that nobody follows, and when ctx ends.
func (m *Manager) Deliver(ctx context.Context) {
	began := time.Now()
	written := map[*program][2]uint64{}
	for _, p := range m.all() {
		written[p] = p.written()
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		maps.DeleteFunc(written, func(p *program, to [2]uint64) bool { return p.delivered(to, began) })
		if len(written) == 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// Offsets tells how much output exists of each program of which the host does
// not know the whole, and how much input it has consumed. Between Quiesce and
// Resume, with the user cgroup frozen, it changes by Pump, CloseInputs and
// Advance only.
func (m *Manager) Offsets() []protocol.ExecOffsets {
	out := []protocol.ExecOffsets{}
	for _, p := range m.all() {
		p.mu.Lock()
		if !p.known {
			out = append(out, protocol.ExecOffsets{ID: p.id, Stdout: p.outs[0].ring.end, Stderr: p.outs[1].ring.end, Stdin: p.in.consumed()})
		}
		p.mu.Unlock()
	}
	return out
}

// CloseInputs puts every program's input at its end, as a new line begins:
// what the host sends is for the line it came from. A terminal gets VEOF when
// it can take it, after Resume.
func (m *Manager) CloseInputs() {
	for _, p := range m.all() {
		p.closeInput()
	}
}

// Advance takes out of the inputs what programs had consumed in the timeline
// that this one replaces, as its last Offsets tell. To a program that had
// consumed less there than it has here nothing is given back.
func (m *Manager) Advance(replaced []protocol.ExecOffsets) {
	for _, e := range replaced {
		if p := m.get(e.ID); p != nil {
			p.advance(e.Stdin)
		}
	}
}

// Of finds the program that a process belongs to, and the program's main
// process, which may have ended. Without cgroups a process is found by its
// session.
func (m *Manager) Of(pid int) (id protocol.ExecID, mainPID int, ok bool) {
	if m.cfg.CgroupRoot != "" {
		for _, name := range cgroupNames(pid) {
			if p := m.get(protocol.ExecID(name)); p != nil {
				return p.id, p.pid, true
			}
		}
		return "", 0, false
	}
	session := sessionOf(pid)
	for _, p := range m.all() {
		if p.pid == session && session != 0 {
			return p.id, p.pid, true
		}
	}
	return "", 0, false
}

// StderrTail is the last of a program's standard error, at most
// protocol.MaxStderrTail bytes; on a terminal of all its output. It is nil for
// an unknown program.
func (m *Manager) StderrTail(id protocol.ExecID) []byte {
	p := m.get(id)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.outs {
		if o.keep {
			return slices.Clone(o.tail)
		}
	}
	return nil
}

// Wait gives the status once the program has ended and its output is complete.
// For an unknown program the channel is closed without a value.
func (m *Manager) Wait(id protocol.ExecID) <-chan protocol.ExitStatus {
	c := make(chan protocol.ExitStatus, 1)
	p := m.get(id)
	if p == nil {
		close(c)
		return c
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		c <- p.status
		close(c)
		return c
	}
	p.waiters = append(p.waiters, c)
	return c
}

// Kill kills all processes of a program.
func (m *Manager) Kill(id protocol.ExecID) error {
	p := m.get(id)
	if p == nil {
		return protocol.Errorf(protocol.CodeNotFound, "no program %s in this guest", id)
	}
	return p.kill()
}

// Close kills all programs and waits for everything the manager started.
func (m *Manager) Close() error {
	m.mu.Lock()
	first := !m.closed
	m.closed = true
	m.mu.Unlock()
	if !first {
		m.watchers.Wait()
		return nil
	}
	// None is admitted any more, and a fork ends by itself.
	err := m.started(context.Background())
	close(m.closing)
	for _, p := range m.running() {
		err = errors.Join(err, p.abandon())
	}
	m.watchers.Wait()
	return err
}
