package sandbox

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

func encode(v any) ([]byte, error) {
	b, err := wire.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return b, nil
}

// quiesce asks the guest to stop for freeze f, and returns after the end of
// its link. On an error the guest's state is unknown: settle.
func (s *Sandbox) quiesce(ctx context.Context, t *timeline, f protocol.Freeze, key protocol.Key) (*protocol.Quiesced, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeouts.Prepare,
		protocol.Errorf(protocol.CodePrepareFailed, "the guest did not stop within %v", s.timeouts.Prepare))
	defer cancel()
	ss, err := t.awaitRunning(ctx)
	if err != nil {
		return nil, err
	}
	t.detach()
	// Errors of Send say nothing here: the guest may have answered and ended
	// the link before Send has returned. What it said, or that the link is lost,
	// comes next.
	ss.link.Send(ctx, &protocol.Prepare{Freeze: f, Key: key})
	for {
		m, err := ss.await(ctx, func(protocol.Message) bool { return true })
		if protocol.CodeOf(err) == protocol.CodeUnavailable {
			// The same failure as below, noticed earlier.
			err = protocol.Errorf(protocol.CodePrepareFailed, "%v", err)
		}
		if err != nil {
			return nil, err
		}
		switch m := m.(type) {
		case *protocol.Drained:
			if m.Freeze != f {
				continue
			}
			ss.link.Send(ctx, &protocol.AckPosition{Freeze: f, Position: m.Position})
		case *protocol.PrepareFailed:
			if m.Freeze == f {
				return nil, prepareFailed{prepareError(m.Error)}
			}
		case *protocol.Quiesced:
			if m.Freeze != f {
				continue
			}
			if err := ss.link.AwaitEnd(ctx); err != nil {
				return nil, protocol.Errorf(protocol.CodePrepareFailed, "read to the end of the link: %v", err)
			}
			if len(m.Execs) > protocol.MaxExecs {
				return nil, protocol.Errorf(protocol.CodeProtocol, "the guest lists %d programs; want at most %d", len(m.Execs), protocol.MaxExecs)
			}
			return m, nil
		}
	}
}

// abort undoes a prepare on the link it was sent on, if that still stands, and
// tells whether the guest runs again. Whatever else the link carries then
// arrives; settle would lose it. The guest fails the call of key itself.
func (s *Sandbox) abort(t *timeline, f protocol.Freeze, key protocol.Key, failure error) bool {
	t.mu.Lock()
	ss := t.current
	t.mu.Unlock()
	if s.ctx.Err() != nil || ss == nil || !ss.alive() {
		return false
	}
	if _, said := errors.AsType[prepareFailed](failure); !said {
		ctx, cancel := context.WithTimeout(t.ctx, s.timeouts.Ack)
		defer cancel()
		if ss.link.Send(ctx, &protocol.Abort{Freeze: f, Error: protocol.AsError(failure)}) != nil {
			return false
		}
		_, err := ss.await(ctx, func(m protocol.Message) bool {
			p, ok := m.(*protocol.PrepareFailed)
			return ok && p.Freeze == f
		})
		if err != nil {
			return false
		}
	}
	t.settled(key)
	t.attach(ss)
	return ss.alive()
}

// prepareFailed is what a guest said, which runs on.
type prepareFailed struct{ error }

func (p prepareFailed) Unwrap() error { return p.error }

// prepareError is the guest's reason. A code that a guest made up is not told.
func prepareError(e *protocol.Error) error {
	switch {
	case e == nil:
		return protocol.Errorf(protocol.CodePrepareFailed, "the guest could not stop")
	case e.Code.Remedy() == "" || len(e.Message) > maxReason:
		return protocol.Errorf(protocol.CodePrepareFailed, "the guest could not stop: %.*s", maxReason, e.Message)
	}
	return e
}

// maxReason bounds what a guest says of its failures, in characters.
const maxReason = 1 << 10

// thawing says what a thaw carries.
type thawing struct {
	freeze  protocol.Freeze
	outcome *protocol.Outcome // nil: pending
	reason  protocol.ResumeReason
	since   time.Time // when the machine stopped
	newLine bool
	// execs is how far the programs of a replaced timeline had come.
	execs []protocol.ExecOffsets
}

// guestLost means that the timeline must be stopped.
type guestLost struct{ error }

func (g guestLost) Unwrap() error { return g.error }

// thaw sends thaw until it is acknowledged. An error is a guestLost or errDown.
func (s *Sandbox) thaw(t *timeline, th thawing) error {
	line, err := s.lineOf(t)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(t.ctx, s.timeouts.Silence,
		protocol.Errorf(protocol.CodeChildLost, "the guest did not answer thaw within %v", s.timeouts.Silence))
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := s.thawOnce(ctx, t, th, line)
		if err == nil {
			var answered protocol.Key
			if th.outcome != nil {
				answered = th.outcome.Key
				t.settled(answered)
			}
			t.mu.Lock()
			hello := t.current.hello
			t.mu.Unlock()
			if hello.Timeline == t.id { // else the thaw has answered all calls
				s.answerUnknown(t, hello, answered)
			}
			return nil
		}
		if errors.Is(err, errLost) || isClosed(t.machine().Done()) || sleep(ctx, wait) != nil {
			return guestLost{err}
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *Sandbox) thawOnce(ctx context.Context, t *timeline, th thawing, line LineRecord) error {
	ss, err := t.session(ctx)
	if err != nil {
		return err
	}
	if ss.hello.State == protocol.StateLost {
		return errLost
	}
	try, cancel := context.WithTimeout(ctx, s.timeouts.Ack)
	defer cancel()
	clock, err := ss.readClock(try)
	if err != nil {
		ss.close()
		return err
	}
	m, err := s.thawMessage(t, th, line, clock)
	if err != nil {
		return err
	}
	if err := ss.link.Send(try, m); err != nil {
		ss.close()
		return err
	}
	_, err = ss.await(try, func(m protocol.Message) bool {
		a, ok := m.(*protocol.Thawed)
		return ok && a.Freeze == th.freeze && a.Timeline == t.id
	})
	if err != nil {
		ss.close()
		return err
	}
	t.attach(ss)
	return nil
}

func (s *Sandbox) thawMessage(t *timeline, th thawing, line LineRecord, clock reading) (*protocol.Thaw, error) {
	epoch, err := t.nextEpoch()
	if err != nil {
		return nil, err
	}
	entropy := make([]byte, 64)
	rand.Read(entropy)
	m := &protocol.Thaw{Freeze: th.freeze, Timeline: t.id, Incarnation: t.incarnation, Outcome: th.outcome, Stream: t.stream, Epoch: epoch,
		Time: clock.wall(), Clock: clock.guest, Entropy: entropy, Reason: th.reason, Slept: max(0, int64(time.Since(th.since))), Execs: th.execs,
		Identity: protocol.Identity{Sandbox: s.id, Node: line.Node, Hostname: line.Hostname, MachineID: line.MachineID, NewLine: th.newLine, Env: line.Env}}
	if th.outcome != nil {
		m.Key = th.outcome.Key
	}
	if len(s.spec.Seed) > 0 {
		m.Identity.Seed = seed(s.spec.Seed, line.Node, uint64(th.freeze))
	}
	return m, nil
}

// seed is H(episode seed, node, index); the index is the freeze number, which
// replays of the same program reach alike.
func seed(episode []byte, node string, index uint64) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%d:", len(episode))
	h.Write(episode)
	fmt.Fprintf(h, "%s:", node)
	binary.Write(h, binary.BigEndian, index)
	return h.Sum(nil)
}

func (s *Sandbox) lineOf(t *timeline) (LineRecord, error) {
	var line LineRecord
	err := s.view(func(tx Tx) error {
		var err error
		line, err = lines.need(tx, string(t.line))
		return err
	})
	return line, err
}

// settle brings a guest whose state is unclear to running with the call of
// key answered by failure (section 3). A guest that cannot be brought there
// is stopped; settle then returns false. The caller holds the turn.
func (s *Sandbox) settle(t *timeline, key protocol.Key, failure error) bool {
	var outcome *protocol.Outcome
	if !key.IsZero() {
		outcome = &protocol.Outcome{Key: key, Error: protocol.AsError(failure)}
	}
	ctx, cancel := context.WithTimeoutCause(t.ctx, s.timeouts.Silence,
		protocol.Errorf(protocol.CodeChildLost, "the guest did not answer within %v", s.timeouts.Silence))
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := s.settleOnce(ctx, t, outcome)
		if err == nil {
			return true
		}
		if t.ctx.Err() != nil {
			return false
		}
		if errors.Is(err, errLost) || isClosed(t.machine().Done()) || sleep(ctx, wait) != nil && t.ctx.Err() == nil {
			s.stopped(t, protocol.Errorf(protocol.CodeChildLost, "%v", err))
			return false
		}
	}
}

var errLost = protocol.Errorf(protocol.CodeChildLost, "the guest's agent died while its programs were frozen")

func (s *Sandbox) settleOnce(ctx context.Context, t *timeline, outcome *protocol.Outcome) error {
	ss, err := t.reconnect(ctx, t.machine())
	if err != nil {
		return err
	}
	switch h := ss.hello; h.State {
	case protocol.StateLost:
		return errLost
	case protocol.StatePreparing:
		failure := protocol.Errorf(protocol.CodePrepareFailed, "the host gave this freeze up")
		if outcome != nil {
			failure = outcome.Error
		}
		try, cancel := context.WithTimeout(ctx, s.timeouts.Ack)
		defer cancel()
		ss.link.Send(try, &protocol.Abort{Freeze: h.Freeze, Error: failure})
		return protocol.Errorf(protocol.CodePrepareFailed, "the guest is still preparing") // look again
	case protocol.StateQuiesced:
		return s.thaw(t, thawing{freeze: h.Freeze, outcome: outcome, reason: protocol.ReasonSnapshot, since: time.Now()})
	case protocol.StateRunning:
		if err := s.attachLink(ctx, t, ss); err != nil {
			return err
		}
		var answered protocol.Key
		if outcome != nil {
			answered = outcome.Key
		}
		s.answerUnknown(t, h, answered)
		if outcome != nil && pending(h, outcome.Key) {
			return s.sendOutcome(ctx, t, ss, outcome)
		}
		if outcome != nil {
			t.settled(outcome.Key)
		}
		return nil
	default:
		return protocol.Errorf(protocol.CodeProtocol, "the guest says state %q", h.State)
	}
}

// answerUnknown answers calls that were lost with the link before, or with
// the daemon before, but for one: they were never taken here and are not run
// now.
func (s *Sandbox) answerUnknown(t *timeline, h *protocol.Hello, but protocol.Key) {
	for _, p := range h.Pending {
		if p.Key == but || t.knows(p.Key) {
			continue
		}
		if t.full() {
			return // agentd never has so many
		}
		t.expectAck(p.Key)
		s.task(func() { s.answerRecorded(t, p.Key) })
	}
}

func pending(h *protocol.Hello, key protocol.Key) bool {
	for _, p := range h.Pending {
		if p.Key == key {
			return true
		}
	}
	return false
}

// attachLink names stream and epoch on a new link to a running guest.
func (s *Sandbox) attachLink(ctx context.Context, t *timeline, ss *session) error {
	epoch, err := t.nextEpoch()
	if err != nil {
		return err
	}
	try, cancel := context.WithTimeout(ctx, s.timeouts.Ack)
	defer cancel()
	clock, err := ss.readClock(try)
	if err != nil {
		return err
	}
	m := &protocol.Attach{Timeline: t.id, Stream: t.stream, Epoch: epoch, Time: clock.wall(), Clock: clock.guest}
	if err := ss.link.Send(try, m); err != nil {
		return err
	}
	_, err = ss.await(try, func(m protocol.Message) bool {
		a, ok := m.(*protocol.Attached)
		return ok && a.Epoch == epoch
	})
	if err == nil {
		t.attach(ss)
	}
	return err
}

// deliver sends an outcome whenever the guest runs, until it is acknowledged
// or the timeline ends.
func (s *Sandbox) deliver(t *timeline, o *protocol.Outcome) error {
	for {
		ss, err := t.awaitRunning(t.ctx)
		if err != nil {
			return err
		}
		if err := s.sendOutcome(t.ctx, t, ss, o); err == nil || t.ctx.Err() != nil {
			return err
		}
		if sleep(t.ctx, time.Millisecond) != nil {
			return context.Cause(t.ctx)
		}
	}
}

func (s *Sandbox) sendOutcome(ctx context.Context, t *timeline, ss *session, o *protocol.Outcome) error {
	acked := t.expectAck(o.Key)
	try, cancel := context.WithTimeout(ctx, s.timeouts.Ack)
	defer cancel()
	if err := ss.link.Send(try, o); err != nil {
		return err
	}
	select {
	case <-acked:
		t.settled(o.Key)
		return nil
	case <-ss.done:
		return protocol.Errorf(protocol.CodeUnavailable, "the link to the guest was lost")
	case <-try.Done():
		if ctx.Err() == nil {
			t.linkEnded(ss) // a new one shows whether the guest is there
		}
		return context.Cause(try)
	}
}

// stopped records that a timeline's VM is dead or given up. The caller holds
// the turn.
func (s *Sandbox) stopped(t *timeline, why *protocol.Error) {
	if s.ctx.Err() != nil {
		return
	}
	vm := t.machine()
	if err := vm.Kill(); err != nil {
		s.log.Error("kill VM", "timeline", t.id, "error", err)
	}
	first := false
	err := s.record("journal.stopped", func(tx Tx) error {
		var err error
		first, err = s.stopTimeline(tx, t.id, why)
		return errors.Join(err, vms.delete(tx, string(vm.ID())))
	})
	if err != nil {
		s.log.Error("record the end of a VM", "timeline", t.id, "error", err)
		return
	}
	s.leave([]protocol.TimelineID{t.id}, why)
	if first {
		s.finished(why)
	}
}

// stopTimeline marks a live timeline stopped, gives its slot a result and,
// when it was current, stops the sandbox.
func (s *Sandbox) stopTimeline(tx Tx, id protocol.TimelineID, why *protocol.Error) (current bool, err error) {
	r, err := timelines.need(tx, string(id))
	if err != nil || r.State != StateLive {
		return false, err
	}
	r.State, r.Reason = StateStopped, why
	if err := errors.Join(timelines.put(tx, string(id), r), streams.delete(tx, string(r.Stream))); err != nil {
		return false, err
	}
	line, err := lines.need(tx, string(r.Line))
	if err != nil {
		return false, err
	}
	rec, err := sandboxes.need(tx, string(s.id))
	if err != nil {
		return false, err
	}
	if err := endWaiting(tx, id, protocol.Errorf(protocol.CodeChildLost, "its parent has stopped: %v", why)); err != nil {
		return false, err
	}
	if line.ID == rec.FirstLine {
		rec.State, rec.Reason, rec.Head = StateStopped, why, r.Origin
		return true, sandboxes.put(tx, string(s.id), rec)
	}
	return false, s.fillSlot(tx, line, protocol.ChildResult{Error: why})
}
