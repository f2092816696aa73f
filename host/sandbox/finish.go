package sandbox

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/ratoon-project/ratoon/protocol"
)

// finishCall runs section 6 for the caller's own timeline.
func (s *Sandbox) finishCall(t *timeline, key protocol.Key, a protocol.FinishArgs) error {
	if len(a.Result) > protocol.MaxPayload {
		return protocol.Errorf(protocol.CodeTooLarge, "result of %d bytes; want at most %d", len(a.Result), protocol.MaxPayload)
	}
	if err := t.take(t.ctx); err != nil {
		return err
	}
	defer t.release()
	result := protocol.ChildResult{Result: a.Result}
	if !a.Keep {
		return s.endLine(t.ctx, t, "journal.finish", result, nil)
	}
	if err := s.checkDisk(t.ctx); err != nil {
		return err
	}
	op, done := t.operation()
	defer done()
	defer s.collectGarbage() // after a failure
	h, err := s.hold(op, t, Checkpoint{Class: ClassInternal, Label: "finish", Key: key, Kind: protocol.CallFinish})
	if err != nil {
		return err
	}
	defer s.pin(h.meta.ID)()
	cp, err := h.capture.Publish(op)
	if err != nil {
		return s.undo(t, h, diskError(err))
	}
	result.Checkpoint = cp.ID
	if err := s.endLine(op, t, "journal.finish", result, nil); err != nil {
		return s.undoPublished(t, h, err)
	}
	return errSettled
}

// endLine ends a timeline, gives its slot the result, and ends what is below
// it; the current timeline's end is the sandbox's. The caller holds t's turn.
// An error means that nothing was changed.
func (s *Sandbox) endLine(ctx context.Context, t *timeline, label string, result protocol.ChildResult, why *protocol.Error) error {
	current, err := s.isCurrent(t)
	if err != nil {
		return err
	}
	which := func(tx Tx) ([]protocol.TimelineID, error) { return descendants(tx, t.id) }
	if current {
		which = unended
	}
	held := s.newTurns(t)
	defer held.release()
	var all []protocol.TimelineID
	err = held.commit(ctx, label, which, func(tx Tx, ids []protocol.TimelineID) error {
		r, err := timelines.need(tx, string(t.id))
		if err != nil {
			return err
		}
		if err := r.must(StateLive); err != nil {
			return err
		}
		line, err := lines.need(tx, string(t.line))
		if err != nil {
			return err
		}
		all = ids
		if current {
			err = s.endSandbox(tx, why)
		} else {
			all = append([]protocol.TimelineID{t.id}, ids...)
		}
		return errors.Join(err, s.fillSlot(tx, line, result), s.endTimelines(tx, all, why))
	})
	if err != nil {
		return err
	}
	s.leave(all, why)
	if current {
		s.finished(why)
	}
	return nil
}

// unended lists all timelines that are not ended, ancestors first.
func unended(tx Tx) ([]protocol.TimelineID, error) {
	recs, err := timelines.all(tx)
	if err != nil {
		return nil, err
	}
	depth := map[protocol.LineID]int{}
	all, err := lines.all(tx)
	for _, l := range all {
		depth[l.ID] = l.Depth
	}
	recs = slices.DeleteFunc(recs, func(r TimelineRecord) bool { return r.State == StateEnded })
	slices.SortStableFunc(recs, func(a, b TimelineRecord) int { return cmp.Compare(depth[a.Line], depth[b.Line]) })
	var out []protocol.TimelineID
	for _, r := range recs {
		out = append(out, r.ID)
	}
	return out, err
}

// callerExited ends a child whose program is gone without finish. For the
// current timeline the owner of the sandbox decides.
func (s *Sandbox) callerExited(t *timeline, m *protocol.CallerExited) {
	m.Status.Signal = m.Status.Signal[:min(len(m.Status.Signal), len("SIGRTMIN+15"))]
	why := protocol.Errorf(protocol.CodeChildExited, "the child's program ended without finish (%s)", describe(m.Status)).
		With("status", m.Status.Code).With("signal", m.Status.Signal).With("stderr", string(m.Stderr[:min(len(m.Stderr), protocol.MaxStderrTail)]))
	// The guest tells it once: a disk that is full must not lose it.
	err := s.insist(func() error {
		if t.take(t.ctx) != nil {
			return nil
		}
		defer t.release()
		if current, err := s.isCurrent(t); err != nil || current {
			return nil
		}
		return s.endLine(t.ctx, t, "journal.exited", protocol.ChildResult{Error: why}, why)
	})
	if err != nil && s.ctx.Err() == nil {
		s.log.Error("end a child whose program exited", "timeline", t.id, "error", err)
	}
}

func describe(st protocol.ExitStatus) string {
	if st.Signal != "" {
		return "killed by " + st.Signal
	}
	if st.Code < 0 {
		return "status unknown"
	}
	return "status " + itoa(st.Code)
}

func (s *Sandbox) isCurrent(t *timeline) (bool, error) {
	current := false
	err := s.view(func(tx Tx) error {
		rec, err := sandboxes.need(tx, string(s.id))
		current = rec.FirstLine == t.line
		return err
	})
	return current, err
}

// adoptCall restores the caller's line to the kept end of its child.
func (s *Sandbox) adoptCall(t *timeline, key protocol.Key, a protocol.AdoptArgs) error {
	var kept protocol.CheckpointID
	err := s.view(func(tx Tx) error {
		if err := ownBranch(tx, t.id, a.Branch); err != nil {
			return err
		}
		r, ok, err := results.get(tx, resultKey(a.Branch, a.Index))
		if err != nil {
			return err
		}
		if kept = r.Result.Checkpoint; !ok || kept == "" {
			return protocol.Errorf(protocol.CodeNotKept, "child %d of branch %s has not ended with finish(keep=True)", a.Index, a.Branch)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.restore(t.ctx, restoring{line: t.line, key: key, target: kept, payload: a.Payload, keep: true})
}
