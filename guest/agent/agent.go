package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/ratoon-project/ratoon/guest/fork"
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

// Keeper is PID 1, which outlives the worker; a *keep.Client.
type Keeper interface {
	Keep(keep.Record) error
}

// Fixer gives the machine time and identity; a *fork.Fixer.
type Fixer interface {
	Fix(t *protocol.Thaw, newTimeline bool) error
	// Clock sets the time of a running machine: it was wall, in Unix
	// nanoseconds, when Monotonic returned clock.
	Clock(wall, clock int64) error
	// Monotonic is the machine's monotonic clock in nanoseconds.
	Monotonic() int64
}

var (
	_ Keeper = (*keep.Client)(nil)
	_ Fixer  = (*fork.Fixer)(nil)
)

// Config holds what an Agent works with. Fields without a word on their zero
// value are required.
type Config struct {
	Release string // of this build, told in hello
	First   keep.First
	Lost    bool // a former worker died while the users were frozen

	Keeper Keeper
	Users  fork.Stopper
	Fixer  Fixer
	// Participants are quiesced in this order.
	Participants []fork.Participant
	Execs        Execs
	Files        Files

	Accept   Accept
	Socket   string        // path of the local socket
	Deadline time.Duration // of preparing; 0: protocol.PrepareDeadline
	// Patience is how long a guest program may take to send a request; 0: 30 s.
	Patience time.Duration
	Log      *slog.Logger // nil: none
}

// Agent carries out what its Machine says.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	quiescer *fork.Quiescer
	memory   *semaphore.Weighted // of large requests that are not sent yet
	fail     context.CancelCauseFunc
	ctx      context.Context // of Run
	tasks    sync.WaitGroup

	mu      sync.Mutex // held while effects are carried out; taken before outbox.mu and subscriber.mu
	machine *Machine
	dead    bool               // PID 1 or the freezer failed: nothing is carried out any more
	out     *outbox            // of the present link, nil if none
	cancel  context.CancelFunc // of the Stop that is under way
	timer   *time.Timer
	subs    map[*subscriber]bool
	observe context.CancelFunc
	charged map[protocol.Key]int64 // shares of memory
}

// New makes an agent; Run starts it.
func New(cfg Config) *Agent {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Deadline == 0 {
		cfg.Deadline = protocol.PrepareDeadline
	}
	if cfg.Patience == 0 {
		cfg.Patience = 30 * time.Second
	}
	return &Agent{
		cfg: cfg, log: cfg.Log,
		quiescer: fork.NewQuiescer(cfg.Users, cfg.Participants...),
		memory:   semaphore.NewWeighted(maxRequestMemory),
		machine: NewMachine(MachineOptions{
			Release: cfg.Release, Start: cfg.First.Start, Record: cfg.First.Record, Lost: cfg.Lost,
		}),
		subs:    map[*subscriber]bool{},
		charged: map[protocol.Key]int64{},
	}
}

// Run serves the host and the guest's programs until ctx ends or something
// fails without which the rules cannot be kept; it says what.
func (a *Agent) Run(ctx context.Context) error {
	ctx, a.fail = context.WithCancelCause(ctx)
	a.ctx = ctx
	defer a.fail(nil)

	socket, err := listenLocal(a.cfg.Socket)
	if err != nil {
		return err
	}
	a.tasks.Go(func() { a.acceptLocal(ctx, socket) })
	a.tasks.Go(func() { a.serveLinks(ctx) })
	a.step(func(m *Machine) []Effect {
		if m.State() == protocol.StateLost || m.Watched() == nil {
			return nil
		}
		return []Effect{Observe{m.Watched()}}
	})

	<-ctx.Done()
	socket.Close()
	a.tasks.Wait()
	return context.Cause(ctx)
}

// step lets the machine take one event and carries out what follows.
func (a *Agent) step(event func(*Machine) []Effect) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.dead {
		a.perform(event(a.machine))
	}
}

func (a *Agent) perform(effects []Effect) {
	for _, e := range effects {
		if err := a.do(e); err != nil {
			a.log.Error("the worker cannot go on", keyError, err)
			a.dead = true
			a.fail(err)
			return
		}
	}
}

// do carries out one effect. An error means that the rules can no longer be
// kept, so that the worker must end.
func (a *Agent) do(e Effect) error {
	switch e := e.(type) {
	case Keep:
		if err := a.cfg.Keeper.Keep(e.Record); err != nil {
			return fmt.Errorf("keep the record: %w", err)
		}
	case Stop:
		a.stop(e.Freeze)
	case Cancel:
		if a.cancel != nil {
			a.cancel()
		}
	case Resume:
		if err := a.quiescer.Go(); err != nil {
			return fmt.Errorf("unfreeze the users: %w", err)
		}
	case Arm:
		a.arm(e.Freeze)
	case Disarm:
		a.timer.Stop()
	case Send:
		a.send(e.Message)
	case End:
		a.out.end()
	case Fix:
		a.fix(e)
	case SetTime:
		if err := a.cfg.Fixer.Clock(e.Attach.Time, e.Attach.Clock); err != nil {
			a.log.Warn("the clock was not corrected", keyError, err)
		}
	case Deliver:
		a.tasks.Go(func() {
			a.deliver(a.ctx)
			a.step(func(m *Machine) []Effect { return m.Delivered(e.Key) })
		})
	case Answer:
		a.answer(e)
	case Notify:
		for s := range a.subs {
			s.put(e.Event)
		}
	case Observe:
		a.watch(e.Watch)
	}
	return nil
}

// stop quiesces in the background. It takes as long as users take to freeze.
func (a *Agent) stop(f protocol.Freeze) {
	ctx, cancel := context.WithCancel(a.ctx)
	a.cancel = cancel
	a.tasks.Go(func() {
		defer cancel()
		x, err := a.quiescer.Stop(ctx)
		a.step(func(m *Machine) []Effect { return m.Stopped(f, x, err) })
	})
}

// deliver waits until the host has what was printed.
func (a *Agent) deliver(ctx context.Context) {
	if a.cfg.Execs != nil {
		a.cfg.Execs.Deliver(ctx)
	}
}

func (a *Agent) arm(f protocol.Freeze) {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.timer = time.AfterFunc(a.cfg.Deadline, func() {
		a.step(func(m *Machine) []Effect { return m.Deadline(f) })
	})
}

func (a *Agent) send(msg protocol.Message) {
	if a.out == nil {
		return
	}
	switch msg := msg.(type) {
	case *protocol.Hello:
		msg.Clock = a.cfg.Fixer.Monotonic()
	case *protocol.Pong:
		msg.Clock = a.cfg.Fixer.Monotonic()
	case *protocol.Quiesced:
		if a.cfg.Execs != nil {
			msg.Execs = a.cfg.Execs.Offsets()
		}
	}
	a.out.put(msg)
}

// fix gives the machine its identity. While that cannot be done it stays
// frozen: the host's deadline then ends it.
func (a *Agent) fix(e Fix) {
	err := a.cfg.Fixer.Fix(e.Thaw, e.NewTimeline)
	if err != nil {
		a.log.Error("time and identity are not right, the machine stays frozen", keyError, err)
		a.perform(a.machine.NotFixed())
		return
	}
	if e.NewTimeline && a.cfg.Execs != nil {
		if e.Thaw.Identity.NewLine {
			a.cfg.Execs.CloseInputs()
		}
		a.cfg.Execs.Advance(e.Thaw.Execs)
	}
	a.log.Debug("thawed", keyFreeze, e.Thaw.Freeze, keyTimeline, e.Thaw.Timeline, keyReason, e.Thaw.Reason)
	a.perform(a.machine.Fixed(e.Thaw))
}

// running tells whether users run, and how many thaws there were.
func (a *Agent) running() (bool, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine.State() == protocol.StateRunning, a.machine.Count()
}
