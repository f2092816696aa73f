package sandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratoon-project/ratoon/protocol"
)

// RestoreOptions belong to an operator's restore.
type RestoreOptions struct {
	Payload     []byte
	DropPresent bool
	Detach      bool
}

// Restore replaces the timeline of a node ("" is the current one) by one
// loaded from a checkpoint, for an operator.
func (s *Sandbox) Restore(ctx context.Context, node string, id protocol.CheckpointID, o RestoreOptions) error {
	ctx, done, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	old, err := s.Current(node)
	if err != nil {
		return err
	}
	var line protocol.LineID
	err = s.view(func(tx Tx) error {
		r, err := timelines.need(tx, string(old))
		line = r.Line
		return err
	})
	if err != nil {
		return err
	}
	return s.restore(ctx, restoring{line: line, target: id, payload: o.Payload, keep: !o.DropPresent, detach: o.Detach})
}

func (s *Sandbox) restoreCall(t *timeline, key protocol.Key, a protocol.RestoreArgs) error {
	if len(a.Payload) > protocol.MaxPayload {
		return protocol.Errorf(protocol.CodeTooLarge, "payload of %d bytes; want at most %d", len(a.Payload), protocol.MaxPayload)
	}
	return s.restore(t.ctx, restoring{line: t.line, key: key, target: a.ID, payload: a.Payload, keep: !a.DropPresent, detach: a.Detach})
}

// restoring is one restore under way.
type restoring struct {
	line    protocol.LineID
	key     protocol.Key // zero: an operator's
	target  protocol.CheckpointID
	payload []byte
	keep    bool // the present
	detach  bool // what is below, instead of ending it

	cp      Checkpoint
	old     TimelineRecord
	running *timeline // of old; nil when it has no machine
	held    *held
	unpin   func() // the kept present
	turns   *turns
	ended   []protocol.TimelineID
	copy    *newcopy

	replacement *timeline // committed
}

// restore runs section 8.
func (s *Sandbox) restore(ctx context.Context, r restoring) error {
	defer s.collectGarbage() // of what is pinned here
	defer s.pin(r.target)()
	r.unpin = func() {}
	defer func() { r.unpin() }()
	var err error
	if r.cp, err = s.target(ctx, r.target); err != nil {
		return err
	}
	if err := s.takeLine(ctx, &r); err != nil {
		return err
	}
	defer r.release()
	unreserve, err := s.reserveReplacement(ctx, r.running != nil)
	if err != nil {
		return err
	}
	defer unreserve()
	if r.running != nil {
		op, done := r.running.operation()
		defer done()
		if err := s.holdOld(op, &r); err != nil {
			return err
		}
		ctx = op
	}
	err = s.loadNew(ctx, &r)
	if err == nil {
		err = r.turns.commit(ctx, "journal.restore", r.below, func(tx Tx, below []protocol.TimelineID) error {
			return s.commitRestore(tx, &r, below)
		}, func() { r.replacement = s.enter(r.copy, r.old.ID) })
		if err != nil {
			err = errors.Join(err, s.dropCopies(r.copy))
		}
	}
	if err != nil {
		return s.abandonRestore(&r, err)
	}
	return s.completeRestore(&r)
}

// target checks that a checkpoint can be restored in this sandbox.
func (s *Sandbox) target(ctx context.Context, id protocol.CheckpointID) (Checkpoint, error) {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return Checkpoint{}, err
	}
	cp, err := s.checkpoints.Get(ctx, id)
	if err != nil {
		return cp, err
	}
	if cp.Sandbox != s.id && id != s.spec.Template {
		return cp, protocol.Errorf(protocol.CodeForeignCheckpoint, "checkpoint %s belongs to another sandbox", id)
	}
	if cp.Kind == protocol.CallBranch {
		return cp, protocol.Errorf(protocol.CodeUnknownCheckpoint, "%s is the inside of a branch, not a checkpoint to return to", id)
	}
	return cp, nil
}

// takeLine takes the turns of the line's timeline and of what is below it.
func (s *Sandbox) takeLine(ctx context.Context, r *restoring) error {
	var line LineRecord
	err := s.view(func(tx Tx) error {
		var err error
		if line, err = lines.need(tx, string(r.line)); err != nil {
			return err
		}
		r.old, err = timelines.need(tx, string(line.Timeline))
		return err
	})
	if err == nil && r.old.State == StateEnded {
		err = r.old.must(StateLive)
	}
	if err != nil {
		return err
	}
	if r.running = s.timeline(r.old.ID); r.running != nil {
		if err := r.running.take(ctx); err != nil {
			return err
		}
	}
	r.turns = s.newTurns(r.running)
	if err := r.turns.cover(ctx, r.below); err != nil {
		r.release()
		return err
	}
	return nil
}

// release gives back all turns.
func (r *restoring) release() {
	r.turns.release()
	if r.running != nil {
		r.running.release()
	}
}

// below lists what ends with the old timeline.
func (r *restoring) below(tx Tx) ([]protocol.TimelineID, error) {
	if r.detach {
		return nil, nil
	}
	return descendants(tx, r.old.ID)
}

// holdOld stops the old machine, and publishes its present if that is kept.
// It stays paused.
func (s *Sandbox) holdOld(ctx context.Context, r *restoring) error {
	t := r.running
	if isClosed(t.machine().Done()) {
		s.stopped(t, protocol.Errorf(protocol.CodeChildLost, "the machine ended: %v", causeOf(t.machine())))
		return told(r.key, protocol.Errorf(protocol.CodeSandboxStopped, "the machine ended before the restore"))
	}
	want := Checkpoint{Class: ClassAuto, Label: "before restore of " + string(r.target), Key: r.key, Kind: protocol.CallRestore}
	if !r.keep {
		h, err := s.stop(ctx, t, want)
		r.held = h
		return err
	}
	if err := s.checkDisk(ctx); err != nil {
		return err
	}
	h, err := s.hold(ctx, t, want)
	if err != nil {
		return err
	}
	r.unpin = s.pin(h.meta.ID)
	if _, err := h.capture.Publish(ctx); err != nil {
		return s.undo(t, h, diskError(err))
	}
	r.held = h
	return nil
}

// execs is how far the programs of the old timeline had come; nil where it was
// not stopped here.
func (r *restoring) execs() []protocol.ExecOffsets {
	if r.held == nil {
		return nil
	}
	return r.held.meta.Execs
}

// loadNew starts the machine of the replacement; on an error nothing is left
// of it.
func (s *Sandbox) loadNew(ctx context.Context, r *restoring) error {
	r.copy = s.newCopy(r.cp, r.line)
	r.copy.op = "restore"
	if err := s.commit("journal.intend", r.copy.intend); err != nil {
		return err
	}
	if err := s.loadCopy(ctx, r.copy, 1, r.cp); err != nil {
		return errors.Join(err, s.dropCopies(r.copy))
	}
	return nil
}

func (s *Sandbox) commitRestore(tx Tx, r *restoring, below []protocol.TimelineID) error {
	line, err := lines.need(tx, string(r.line))
	if err != nil {
		return err
	}
	old, err := timelines.need(tx, string(r.old.ID))
	if err != nil {
		return err
	}
	if old.State == StateEnded {
		return old.must(StateLive)
	}
	if r.running != nil {
		if err := old.must(StateLive); err != nil {
			return err
		}
	}
	if line.Branch != "" && !line.Detached {
		// A slot takes one result: a line that is restored after it had one
		// no longer belongs to its branch.
		if _, had, err := results.get(tx, resultKey(line.Branch, line.Index)); err != nil {
			return err
		} else if had {
			line.Detached = true
		}
	}
	op := RestoreRecord{Line: r.line, Old: r.old.ID, New: r.copy.timeline, VM: r.copy.vmID, Target: r.cp.ID,
		Freeze: r.cp.Freeze, Caller: r.cp.Key, Payload: r.payload, Execs: r.execs()}
	if r.held != nil && r.keep {
		op.Kept = r.held.meta.ID
	}
	why := protocol.Errorf(protocol.CodeSandboxStopped, "replaced by a restore of %s", r.cp.ID)
	if r.detach {
		if err := detachBelow(tx, r.old.ID); err != nil {
			return err
		}
	}
	r.ended = append([]protocol.TimelineID{r.old.ID}, below...)
	return errors.Join(
		s.endTimelines(tx, r.ended, why),
		r.copy.become(tx, line),
		restores.put(tx, string(op.New), op),
		sandboxes.change(tx, string(s.id), func(rec *SandboxRecord) error {
			if rec.FirstLine == r.line {
				rec.State, rec.Reason = StateRunning, nil
			}
			return nil
		}))
}

// detachBelow frees the child lines of a timeline from their slots.
func detachBelow(tx Tx, parent protocol.TimelineID) error {
	all, err := lines.all(tx)
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.Parent == parent && !l.Detached {
			l.Detached = true
			if err := lines.put(tx, string(l.ID), l); err != nil {
				return err
			}
		}
	}
	return nil
}

// endWaiting ends the slots that still wait for a wave of a parent that is
// over ("": of an operator's branches).
func endWaiting(tx Tx, parent protocol.TimelineID, why *protocol.Error) error {
	ops, err := branches.all(tx)
	if err != nil {
		return err
	}
	for _, op := range ops {
		if op.Parent != parent {
			continue
		}
		for i := range op.Children {
			if op.Children[i].State != ChildWaiting {
				continue
			}
			op.Children[i].State = ChildOver
			if err := putResult(tx, op.ID, parent, protocol.ChildResult{Index: op.Children[i].Index, Error: why}); err != nil {
				return err
			}
		}
		if err := branches.put(tx, string(op.ID), op); err != nil {
			return err
		}
	}
	return nil
}

// abandonRestore lets the old machine go on with the error.
func (s *Sandbox) abandonRestore(r *restoring, failure error) error {
	if r.held == nil {
		return failure
	}
	failure = fmt.Errorf("restore %s: %w", r.cp.ID, failure)
	if r.keep {
		return s.undoPublished(r.running, r.held, failure)
	}
	return s.undo(r.running, r.held, failure)
}

// completeRestore does what follows the commit: it is not undone. The new
// timeline is there before the old one leaves, so that who follows the line
// never finds it empty.
func (s *Sandbox) completeRestore(r *restoring) error {
	t := r.replacement
	defer t.release()
	s.started(t, r.cp)
	s.leave(r.ended, protocol.Errorf(protocol.CodeSandboxStopped, "replaced by a restore of %s", r.cp.ID))
	if err := s.thawRestored(t, r.cp, r.payload, r.execs()); err != nil {
		return err
	}
	s.watch(t)
	return errSettledFor(r.key)
}

func errSettledFor(key protocol.Key) error {
	if key.IsZero() {
		return nil
	}
	return errSettled
}

// thawRestored runs step 8 and 9. A checkpoint of another line, as in an adopt,
// gets the names of this one, and its input stays at its end.
func (s *Sandbox) thawRestored(t *timeline, cp Checkpoint, payload []byte, execs []protocol.ExecOffsets) error {
	if cp.Class == ClassInternal { // a child's kept end: the head from now on
		if err := s.checkpoints.SetClass(s.ctx, cp.ID, ClassAuto); err != nil {
			s.log.Error("keep the adopted checkpoint", "checkpoint", cp.ID, "error", err)
		}
	}
	th := thawing{freeze: cp.Freeze, reason: protocol.ReasonRestore, since: cp.Created, newLine: cp.Line != t.line, execs: execs}
	if !cp.Key.IsZero() {
		v, err := encode(protocol.SnapshotResult{ID: cp.ID, Restored: true, Payload: payload})
		if err != nil {
			return err
		}
		th.outcome = &protocol.Outcome{Key: cp.Key, Value: v}
	}
	thawed := s.thaw(t, th)
	if s.ctx.Err() != nil {
		return errDown
	}
	err := s.record("journal.restored", func(tx Tx) error { return restores.delete(tx, string(t.id)) })
	if err != nil {
		s.log.Error("close the record of a restore", "timeline", t.id, "error", err)
	}
	if thawed != nil {
		return s.lostOr(t, thawed)
	}
	return nil
}

// started tells observers of a new timeline.
func (s *Sandbox) started(t *timeline, cp Checkpoint) {
	line, err := s.lineOf(t)
	if err != nil {
		s.log.Error("read line of a new timeline", "timeline", t.id, "error", err)
	}
	s.emit(Event{Kind: EventTimelineStarted, Timeline: t.id, Line: t.line, Node: line.Node, Replaces: t.replaces,
		Checkpoint: cp.ID, Maker: cp.Timeline, Execs: cp.Execs})
}
