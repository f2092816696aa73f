package sandbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ratoon-project/ratoon/protocol"
)

// reserveBlock is how many freeze numbers and epochs are reserved durably at
// a time.
const reserveBlock = 256

// timeline is the running side of a live TimelineRecord.
type timeline struct {
	sb       *Sandbox
	id       protocol.TimelineID
	line     protocol.LineID
	origin   protocol.CheckpointID
	replaces protocol.TimelineID
	stream   protocol.StreamID

	ctx    context.Context // ends with the timeline
	cancel context.CancelCauseFunc
	// interrupt cancels the operation under way, as far as it has not
	// committed.
	turn chan struct{}
	lost chan struct{} // a link ended

	exiting atomic.Bool // its program's exit is being looked at

	mu          sync.Mutex // guards what follows; below Sandbox.mu
	vm          VM
	incarnation uint64
	current     *session
	running     chan struct{} // closed while attached is set
	attached    *session      // the guest runs and knows stream and epoch
	interrupt   context.CancelCauseFunc
	freeze      protocol.Freeze
	freezes     protocol.Freeze // reserved
	epoch       uint64
	epochs      uint64 // reserved
	calls       map[protocol.Key]*call
	callBytes   int
	recopied    int64 // see move.go
	written     int64
}

func (s *Sandbox) newTimeline(r TimelineRecord, vm VM) *timeline {
	t := &timeline{sb: s, id: r.ID, line: r.Line, origin: r.Origin, stream: r.Stream, turn: make(chan struct{}, 1), lost: make(chan struct{}, 1),
		vm: vm, incarnation: r.Incarnation, running: make(chan struct{}), freeze: r.Freezes, freezes: r.Freezes, epoch: r.Epochs, epochs: r.Epochs,
		calls: map[protocol.Key]*call{}}
	t.ctx, t.cancel = context.WithCancelCause(s.ctx)
	return t
}

// errEnded is the cause of a context whose timeline ended.
var errEnded = protocol.Errorf(protocol.CodeSandboxStopped, "the timeline has ended")

func (t *timeline) machine() VM {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.vm
}

// take waits for the timeline's turn. Waiters are served in order.
func (t *timeline) take(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		if t.ctx.Err() != nil {
			<-t.turn
			return context.Cause(t.ctx)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
}

func (t *timeline) release() { <-t.turn }

// operation is the context of the steps before a commit, which a restore of
// an ancestor may cancel.
func (t *timeline) operation() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(t.ctx)
	t.mu.Lock()
	t.interrupt = cancel
	t.mu.Unlock()
	return ctx, func() { cancel(context.Canceled) }
}

// interruptOperation makes the operation under way fail, unless it is past
// its commit.
func (t *timeline) interruptOperation(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.interrupt != nil {
		t.interrupt(cause)
	}
}

// nextFreeze numbers the next freeze; a number is never used twice, also by
// the next daemon.
func (t *timeline) nextFreeze() (protocol.Freeze, error) {
	t.mu.Lock()
	t.freeze++
	f, reserved := t.freeze, t.freezes
	t.mu.Unlock()
	if f <= reserved {
		return f, nil
	}
	reserved = f + reserveBlock
	err := t.sb.commit("journal.reserve", func(tx Tx) error {
		return timelines.change(tx, string(t.id), func(r *TimelineRecord) error {
			r.Freezes = max(r.Freezes, reserved)
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("reserve freeze numbers: %w", err)
	}
	t.mu.Lock()
	t.freezes = max(t.freezes, reserved)
	t.mu.Unlock()
	return f, nil
}

// nextEpoch numbers the next naming of the stream.
func (t *timeline) nextEpoch() (uint64, error) {
	t.mu.Lock()
	t.epoch++
	e, reserved := t.epoch, t.epochs
	t.mu.Unlock()
	if e <= reserved {
		return e, nil
	}
	reserved = e + reserveBlock
	err := t.sb.commit("journal.reserve", func(tx Tx) error {
		return timelines.change(tx, string(t.id), func(r *TimelineRecord) error {
			r.Epochs = max(r.Epochs, reserved)
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("reserve epochs: %w", err)
	}
	t.mu.Lock()
	t.epochs = max(t.epochs, reserved)
	t.mu.Unlock()
	return e, nil
}

// session returns the standing link, or a new one. Only the holder of the
// turn may call it.
func (t *timeline) session(ctx context.Context) (*session, error) {
	t.mu.Lock()
	ss, vm := t.current, t.vm
	t.mu.Unlock()
	if ss != nil && ss.alive() {
		ss.owner.Store(t)
		return ss, nil
	}
	return t.reconnect(ctx, vm)
}

// reconnect replaces the link.
func (t *timeline) reconnect(ctx context.Context, vm VM) (*session, error) {
	t.detach()
	t.mu.Lock()
	old := t.current
	t.current = nil
	t.mu.Unlock()
	if old != nil {
		old.close() // what it still holds is taken
		old.owner.Store(nil)
	}
	ss, err := t.sb.dial(ctx, vm)
	if err != nil {
		return nil, err
	}
	ss.owner.Store(t)
	t.mu.Lock()
	t.current = ss
	t.mu.Unlock()
	return ss, nil
}

// attach opens the way for outcomes: the guest runs on this link.
func (t *timeline) attach(ss *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attached == nil {
		close(t.running)
	}
	t.attached = ss
}

// detach closes it.
func (t *timeline) detach() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attached != nil {
		t.attached = nil
		t.running = make(chan struct{})
	}
}

// awaitRunning waits until the guest runs on an attached link.
func (t *timeline) awaitRunning(ctx context.Context) (*session, error) {
	for {
		t.mu.Lock()
		ss, running := t.attached, t.running
		t.mu.Unlock()
		if ss != nil {
			return ss, nil
		}
		select {
		case <-running:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// linkEnded is called when a link has ended, or its guest no longer answers.
func (t *timeline) linkEnded(ss *session) {
	t.mu.Lock()
	if t.attached == ss {
		t.attached = nil
		t.running = make(chan struct{})
	}
	t.mu.Unlock()
	select {
	case t.lost <- struct{}{}:
	default:
	}
}

// close ends all that waits for this timeline.
func (t *timeline) close() {
	t.cancel(errEnded)
	t.mu.Lock()
	ss := t.current
	t.mu.Unlock()
	if ss != nil {
		ss.close()
	}
}

// watch looks after a timeline between operations: a lost link is made anew,
// a dead VM stops the timeline.
func (s *Sandbox) watch(t *timeline) {
	s.task(func() {
		for {
			vm := t.machine()
			select {
			case <-t.ctx.Done():
				return
			case <-vm.Done():
			case <-t.lost:
			}
			if t.take(t.ctx) != nil {
				return
			}
			s.look(t)
			t.release()
		}
	})
}

// look settles a timeline whose link or VM may be gone, and tells whether it
// runs. The caller holds the turn.
func (s *Sandbox) look(t *timeline) bool {
	vm := t.machine()
	select {
	case <-vm.Done():
		s.stopped(t, protocol.Errorf(protocol.CodeChildLost, "the machine ended: %v", causeOf(vm)))
		return false
	default:
	}
	t.mu.Lock()
	fine := t.attached != nil && t.attached.alive()
	t.mu.Unlock()
	return fine || s.settle(t, protocol.Key{}, nil)
}
