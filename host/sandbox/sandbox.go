package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Spec is what a sandbox is started with. It is kept in its record.
type Spec struct {
	// Template is the checkpoint the first timeline is loaded from.
	Template protocol.CheckpointID
	// MemoryBytes is the guest RAM of one VM, for the memory budget.
	MemoryBytes int64
	Limits      Limits
	// Seed makes helpers seed their generators from H(Seed, node, index);
	// empty: from the kernel's.
	Seed []byte `json:",omitempty"`
	// AutoKeep is how many checkpoints of class auto are kept. 0: 8.
	AutoKeep int
}

// Deps are the parts a sandbox works with. All but Models and Observe are
// required.
type Deps struct {
	Machines    Machines
	Checkpoints Checkpoints
	Journal     Journal
	Models      Models
	// Observe is called with each event, in order, and must not block.
	Observe func(Event)
	Log     *slog.Logger
	// Timeouts; the zero value is the documented default.
	Timeouts Timeouts
	// Resident: machines outlive this process, as under a root daemon.
	// Recovery then wakes what a move has left without one, since its callers
	// wait in the checkpoint.
	Resident bool
}

// Timeouts bound how long the host waits for a guest.
type Timeouts struct {
	Connect time.Duration // one link with its hello; 10 s
	Prepare time.Duration // prepare to end; PrepareDeadline + 5 s
	Ack     time.Duration // one sending of thaw, attach or outcome; 5 s
	Silence time.Duration // all tries together: then the guest is given up; 60 s
}

func (t Timeouts) withDefaults() Timeouts {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Connect, 10*time.Second)
	set(&t.Prepare, protocol.PrepareDeadline+5*time.Second)
	set(&t.Ack, 5*time.Second)
	set(&t.Silence, 60*time.Second)
	return t
}

// Sandbox is one tree of timelines.
type Sandbox struct {
	id          protocol.SandboxID
	spec        Spec
	machines    Machines
	checkpoints Checkpoints
	journal     Journal
	models      Models
	log         *slog.Logger
	timeouts    Timeouts
	resident    bool

	ctx    context.Context
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup
	ended  chan struct{} // closed with the sandbox's end or stop
	// recovered is closed when every guest of an earlier process has said
	// what it waits for.
	recovered chan struct{}

	commits gate // orders commits
	garbage gate // one collection at a time; taken before commits

	minRebase int64
	owed      map[protocol.Key]recorded // by operations of an earlier process
	spare     gate                      // the one VM beyond the budget

	mu        sync.Mutex // guards what follows
	observe   func(Event)
	timelines map[protocol.TimelineID]*timeline // with a VM
	pins      map[protocol.CheckpointID]int     // used by an operation under way
	unwanted  map[protocol.CheckpointID]bool    // to be removed, and pinned
	waiters   map[protocol.BranchID]chan struct{}
	closed    bool
	over      *protocol.Error
	isOver    bool
	reserved  int // VMs of operations under way, for the live budget
}

func newSandbox(id protocol.SandboxID, spec Spec, d Deps) *Sandbox {
	log := d.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if spec.AutoKeep == 0 {
		spec.AutoKeep = 8
	}
	s := &Sandbox{
		id: id, spec: spec, machines: d.Machines, checkpoints: d.Checkpoints, journal: d.Journal, models: d.Models,
		observe: d.Observe, log: log.With("sandbox", id), timeouts: d.Timeouts.withDefaults(), ended: make(chan struct{}), recovered: make(chan struct{}), resident: d.Resident,
		commits: make(gate, 1), garbage: make(gate, 1), spare: make(gate, 1),
		timelines: map[protocol.TimelineID]*timeline{}, pins: map[protocol.CheckpointID]int{}, unwanted: map[protocol.CheckpointID]bool{},
		waiters: map[protocol.BranchID]chan struct{}{}, minRebase: minRebase,
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// Start makes a sandbox and loads its first timeline from the template. ctx
// bounds the start only. The journal is that of id, a new one.
func Start(ctx context.Context, d Deps, id protocol.SandboxID, spec Spec) (*Sandbox, error) {
	s := newSandbox(id, spec, d)
	defer s.bound(ctx)()
	close(s.recovered)
	if err := s.start(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// bound makes the end of ctx the end of the sandbox, until released.
func (s *Sandbox) bound(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
}

func (s *Sandbox) start(ctx context.Context) error {
	cp, err := s.checkpoints.Get(ctx, s.spec.Template)
	if err != nil {
		return fmt.Errorf("open checkpoint to start from: %w", err)
	}
	line := LineRecord{ID: protocol.NewLineID(), Node: "0"}
	c := s.newCopy(cp, line.ID)
	err = s.commit("journal.start", func(tx Tx) error {
		rec := SandboxRecord{ID: s.id, Created: time.Now().UTC(), FirstLine: line.ID, State: StateStopped,
			Reason: protocol.Errorf(protocol.CodeHostRestarted, "the host ended while the sandbox was starting"), Spec: s.spec}
		return errors.Join(sandboxes.put(tx, string(s.id), rec), ledgers.put(tx, ledgerKey, ledgerRecord{}), c.intend(tx))
	})
	if err != nil {
		return err
	}
	if err := s.loadCopy(ctx, c, 1, cp); err != nil {
		return errors.Join(fmt.Errorf("start first timeline: %w", err), s.dropCopies(c))
	}
	var t *timeline
	err = s.commit("journal.started", func(tx Tx) error {
		return errors.Join(
			sandboxes.change(tx, string(s.id), func(r *SandboxRecord) error {
				r.State, r.Reason = StateRunning, nil
				return nil
			}),
			c.become(tx, line))
	}, func() { t = s.enter(c, "") })
	if err != nil {
		return errors.Join(err, s.dropCopies(c))
	}
	defer t.release()
	s.started(t, cp)
	answer := &protocol.Outcome{Key: cp.Key}
	if cp.Key.IsZero() {
		answer = nil
	} else {
		answer.Value, err = encode(protocol.SnapshotResult{ID: cp.ID, Restored: true})
		if err != nil {
			return err
		}
	}
	if err := s.thaw(t, thawing{freeze: cp.Freeze, outcome: answer, reason: protocol.ReasonStart, since: cp.Created, newLine: true}); err != nil {
		return fmt.Errorf("thaw first timeline: %w", s.lostOr(t, err))
	}
	s.watch(t)
	return nil
}

// ID names the sandbox.
func (s *Sandbox) ID() protocol.SandboxID { return s.id }

// Ended is closed when the sandbox has ended or stopped; Reason then says
// why, nil after a finish.
func (s *Sandbox) Ended() <-chan struct{} { return s.ended }

// Reason is why the sandbox is over.
func (s *Sandbox) Reason() *protocol.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// Close kills every VM of this process and waits for all that runs. Records
// stay as they are: recovery or the removal of the state directory follows.
func (s *Sandbox) Close() {
	s.cancel(errDown)
	s.killAll()
	s.down()
	s.killAll() // what the last commits have added
}

// down waits for all that runs, and leaves the machines alone.
func (s *Sandbox) down() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errDown)
	s.tasks.Wait()
}

func (s *Sandbox) killAll() {
	for _, t := range s.running() {
		if err := t.machine().Kill(); err != nil {
			s.log.Error("kill VM", "timeline", t.id, "error", err)
		}
		t.close()
	}
}

// begin makes Close wait for an operation of the owner, and end it.
func (s *Sandbox) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, protocol.Errorf(protocol.CodeUnavailable, "%v", errDown)
	}
	s.tasks.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() { stop(); cancel(nil); s.tasks.Done() }, nil
}

// End ends every timeline and the sandbox; reason nil means as asked. While the
// disk is full it goes on trying; Close ends that.
func (s *Sandbox) End(reason *protocol.Error) error {
	_, done, err := s.begin(s.ctx)
	if err != nil {
		return err
	}
	defer done()
	held := s.newTurns()
	defer held.release()
	var all []protocol.TimelineID
	err = s.insist(func() error {
		return held.commit(s.ctx, "journal.end", unended, func(tx Tx, ids []protocol.TimelineID) error {
			all = ids
			return errors.Join(s.endTimelines(tx, all, reason), s.endSandbox(tx, reason))
		})
	})
	if err != nil {
		return err
	}
	s.leave(all, reason)
	s.finished(reason)
	return nil
}

func (s *Sandbox) endSandbox(tx Tx, reason *protocol.Error) error {
	over := reason
	if over == nil {
		over = protocol.Errorf(protocol.CodeSandboxStopped, "the sandbox has ended")
	}
	return errors.Join(endWaiting(tx, "", over), sandboxes.change(tx, string(s.id), func(r *SandboxRecord) error {
		r.State, r.Reason = StateEnded, reason
		return nil
	}))
}

// finished tells everybody that the sandbox is over.
func (s *Sandbox) finished(reason *protocol.Error) {
	s.mu.Lock()
	done := s.isOver
	if !done {
		s.isOver, s.over = true, reason
	}
	s.mu.Unlock()
	if !done {
		s.emit(Event{Kind: EventSandboxEnded, Error: reason})
		close(s.ended)
	}
}

// running lists the timelines that have a VM.
func (s *Sandbox) running() []*timeline {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.timelines), func(a, b *timeline) int { return cmp.Compare(a.id, b.id) })
}

func (s *Sandbox) timeline(id protocol.TimelineID) *timeline {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timelines[id]
}

// Current is the live timeline of a node; "" and "0" name the first line.
func (s *Sandbox) Current(node string) (protocol.TimelineID, error) {
	if node == "" {
		node = "0"
	}
	var id protocol.TimelineID
	err := s.view(func(tx Tx) error {
		all, err := lines.all(tx)
		for _, l := range all {
			if l.Node == node {
				id = l.Timeline
			}
		}
		return err
	})
	if err == nil && id == "" {
		err = protocol.Errorf(protocol.CodeNotFound, "sandbox %s has no node %q", s.id, node)
	}
	return id, err
}

func (s *Sandbox) emit(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.observe != nil {
		s.observe(e)
	}
}

// task runs f in a goroutine that Close waits for.
func (s *Sandbox) task(f func()) { s.tasks.Go(f) }

// pin keeps a checkpoint from being removed while an operation uses it.
func (s *Sandbox) pin(id protocol.CheckpointID) (unpin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[id]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pins[id]--; s.pins[id] > 0 {
			return
		}
		delete(s.pins, id)
		if s.unwanted[id] {
			delete(s.unwanted, id)
			s.task(s.collectGarbage)
		}
	}
}

// diskError gives a full disk its code.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &protocol.Error{Code: protocol.CodeDiskFull, Message: err.Error()}
	}
	return err
}
