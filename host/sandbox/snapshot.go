package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// SnapshotOptions belong to an operator's snapshot.
type SnapshotOptions struct {
	Label   string
	Durable bool
}

// Snapshot makes a checkpoint of a node's timeline ("" is the current one)
// for an operator: no program in the guest is told.
func (s *Sandbox) Snapshot(ctx context.Context, node string, o SnapshotOptions) (protocol.CheckpointID, error) {
	ctx, done, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	t, err := s.liveAt(node)
	if err != nil {
		return "", err
	}
	return s.snapshot(ctx, t, protocol.Key{}, protocol.SnapshotArgs{Label: o.Label, Durable: o.Durable})
}

func (s *Sandbox) liveAt(node string) (*timeline, error) {
	id, err := s.Current(node)
	if err != nil {
		return nil, err
	}
	if t := s.timeline(id); t != nil {
		return t, nil
	}
	return nil, protocol.Errorf(protocol.CodeSandboxStopped, "node %q of sandbox %s has no running machine", node, s.id)
}

func (s *Sandbox) snapshotCall(t *timeline, key protocol.Key, a protocol.SnapshotArgs) (any, error) {
	id, err := s.snapshot(t.ctx, t, key, a)
	return protocol.SnapshotResult{ID: id}, err
}

// snapshot runs section 4. With a key it returns errSettled when the outcome
// has travelled in a thaw; a durable snapshot's follows, without the turn.
func (s *Sandbox) snapshot(ctx context.Context, t *timeline, key protocol.Key, a protocol.SnapshotArgs) (protocol.CheckpointID, error) {
	if len(a.Label) > protocol.MaxLabel {
		return "", protocol.Errorf(protocol.CodeTooLarge, "label of %d bytes; want at most %d", len(a.Label), protocol.MaxLabel)
	}
	if err := t.take(ctx); err != nil {
		return "", err
	}
	defer t.release()
	if err := s.checkDisk(ctx); err != nil {
		return "", err
	}
	op, done := t.operation()
	defer done()
	want := Checkpoint{Class: ClassNamed, Label: a.Label, Key: key, Kind: protocol.CallSnapshot, DurableWanted: a.Durable}
	h, err := s.hold(op, t, want)
	if err != nil {
		return "", err
	}
	defer s.pin(h.meta.ID)()
	var cp Checkpoint
	if s.rebaseDue(t, h.capture) {
		cp, err = s.rebase(op, t, h)
	} else if cp, err = s.releaseAndPublish(op, t, h); err != nil {
		err = s.undo(t, h, err)
	}
	if err != nil {
		return "", err
	}
	th := thawing{freeze: h.freeze, reason: protocol.ReasonSnapshot, since: h.since}
	if !a.Durable && !key.IsZero() {
		th.outcome = &protocol.Outcome{Key: key}
		if th.outcome.Value, err = encode(protocol.SnapshotResult{ID: cp.ID}); err != nil {
			return "", err
		}
	}
	if err := s.thaw(t, th); err != nil {
		return cp.ID, s.lostOr(t, err)
	}
	s.emit(Event{Kind: EventCheckpoint, Timeline: t.id, Line: t.line, Checkpoint: cp.ID})
	if a.Durable {
		// The guest runs already: nothing but the end of this process stops it.
		if err := s.checkpoints.Durable(s.ctx, cp.ID); err != nil {
			return "", errors.Join(diskError(err), s.checkpoints.Remove(s.ctx, cp.ID))
		}
		return cp.ID, nil
	}
	return cp.ID, errSettledFor(key)
}

// held is a quiesced and captured machine.
type held struct {
	freeze  protocol.Freeze
	key     protocol.Key
	capture Capture
	meta    Checkpoint
	since   time.Time
	paused  bool
}

// hold quiesces, pauses and captures a timeline, and leaves it paused. On an
// error the timeline has been settled: it runs, or is stopped.
func (s *Sandbox) hold(ctx context.Context, t *timeline, want Checkpoint) (*held, error) {
	h, err := s.stop(ctx, t, want)
	if err != nil {
		return nil, err
	}
	h.capture, err = s.checkpoints.Capture(ctx, t.machine(), h.meta)
	if err != nil {
		return nil, s.undo(t, h, diskError(err))
	}
	return h, nil
}

// stop quiesces and pauses, without a capture.
func (s *Sandbox) stop(ctx context.Context, t *timeline, want Checkpoint) (*held, error) {
	// A link that was lost a moment ago is made anew here: nobody else can
	// while the turn is held.
	if !s.look(t) {
		return nil, protocol.Errorf(protocol.CodeSandboxStopped, "the machine is gone")
	}
	f, err := t.nextFreeze()
	if err != nil {
		return nil, err
	}
	h := &held{freeze: f, key: want.Key, meta: want, since: time.Now()}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	q, err := s.quiesce(ctx, t, f, want.Key)
	if err != nil {
		if !s.abort(t, f, want.Key, err) {
			s.settle(t, want.Key, err)
		}
		return nil, told(want.Key, err)
	}
	if err := t.machine().Pause(ctx); err != nil {
		h.paused = true // as far as we know
		if ctx.Err() == nil {
			err = protocol.Errorf(protocol.CodeCaptureFailed, "pause: %v", err)
		}
		return nil, s.undo(t, h, err)
	}
	h.paused = true
	line, err := s.lineOf(t)
	if err != nil {
		return nil, s.undo(t, h, err)
	}
	m := &h.meta
	m.ID, m.Created, m.Sandbox, m.Timeline, m.Line, m.Node = protocol.NewCheckpointID(), time.Now().UTC(), s.id, t.id, t.line, line.Node
	m.Parent, m.Freeze, m.Position, m.Execs = t.origin, f, q.Position, q.Execs
	return h, nil
}

// releaseAndPublish un-pauses first, so that the machine's clock stands still
// for as short as possible; users stay frozen until thaw.
func (s *Sandbox) releaseAndPublish(ctx context.Context, t *timeline, h *held) (Checkpoint, error) {
	if err := t.machine().Resume(t.ctx); err != nil {
		return Checkpoint{}, protocol.Errorf(protocol.CodeCaptureFailed, "un-pause: %v", err)
	}
	h.paused = false
	cp, err := h.capture.Publish(ctx)
	if err != nil {
		return Checkpoint{}, diskError(err)
	}
	s.accountCapture(t, h.capture)
	return cp, nil
}

// undo lets a held machine go on with an error; it returns what the caller
// of the operation is to return.
func (s *Sandbox) undo(t *timeline, h *held, failure error) error {
	if s.ctx.Err() != nil {
		return errDown
	}
	if h.capture != nil {
		h.capture.Discard()
	}
	if h.paused {
		if err := t.machine().Resume(t.ctx); err != nil {
			s.stopped(t, protocol.Errorf(protocol.CodeChildLost, "un-pause: %v", err))
			return told(h.key, failure)
		}
	}
	th := thawing{freeze: h.freeze, reason: protocol.ReasonSnapshot, since: h.since}
	if !h.key.IsZero() {
		th.outcome = &protocol.Outcome{Key: h.key, Error: protocol.AsError(failure)}
	}
	if err := s.thaw(t, th); err != nil {
		return errors.Join(failure, s.lostOr(t, err))
	}
	return told(h.key, failure)
}

// undoPublished is undo for a capture that is a checkpoint already.
func (s *Sandbox) undoPublished(t *timeline, h *held, failure error) error {
	if s.ctx.Err() != nil {
		return errDown
	}
	if err := s.checkpoints.Remove(s.ctx, h.meta.ID); err != nil {
		s.log.Error("remove the checkpoint of a failed operation", "checkpoint", h.meta.ID, "error", err)
	}
	return s.undo(t, h, failure)
}

// told is err for the caller of an operation whose guest caller, if any, has
// had its outcome.
func told(key protocol.Key, err error) error {
	if key.IsZero() {
		return err
	}
	return errors.Join(err, errSettled)
}

// lostOr stops the timeline when err says that its guest is lost.
func (s *Sandbox) lostOr(t *timeline, err error) error {
	if g, ok := errors.AsType[guestLost](err); ok {
		s.stopped(t, protocol.Errorf(protocol.CodeChildLost, "%v", g.error))
		return errors.Join(err, errSettled)
	}
	return err
}
