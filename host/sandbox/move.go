package sandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratoon-project/ratoon/protocol"
)

// minRebase is the least written memory for which a new base is worth its
// process start.
const minRebase = 16 << 20

// A capture copies everything written since the base of its machine, also
// what the capture before has copied already. rebaseDue compares what was
// copied again since the last move with what a new base costs, the guest's
// RAM once: so all captures of a timeline together cost at most twice what
// perfect tracking would, however many there are.
func (s *Sandbox) rebaseDue(t *timeline, c Capture) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	again := t.recopied + min(t.written, c.Bytes())
	return c.Bytes() >= s.minRebase && again >= s.spec.MemoryBytes
}

func (s *Sandbox) accountCapture(t *timeline, cp Checkpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recopied += min(t.written, cp.Bytes)
	t.written = cp.Bytes
}

// rebase moves a held timeline onto a new base made of this capture (section
// 5). The snapshot's outcome travels in the last thaw.
func (s *Sandbox) rebase(ctx context.Context, t *timeline, h *held) (protocol.CheckpointID, error) {
	cp, err := h.capture.Publish(ctx)
	if err != nil {
		return "", s.undo(t, h, diskError(err))
	}
	old := t.machine()
	err = s.commit("journal.move", func(tx Tx) error {
		return timelines.change(tx, string(t.id), func(r *TimelineRecord) error {
			if err := r.must(StateLive); err != nil {
				return err
			}
			r.State, r.Hibernated = StateHibernated, &Hibernated{Checkpoint: cp.ID, Freeze: h.freeze, Wake: true}
			return nil
		})
	})
	if err != nil {
		return "", errors.Join(s.undo(t, h, err), s.checkpoints.Remove(s.ctx, cp.ID))
	}
	t.detach()
	if err := old.Kill(); err != nil {
		s.log.Error("kill VM", "timeline", t.id, "error", err)
	}
	if err := s.wake(t, cp, old.ID()); err != nil {
		why := protocol.Errorf(protocol.CodeOf(err), "move to a new base: %v", err)
		s.hibernated(t, why)
		return "", errors.Join(why, errSettled)
	}
	th := thawing{freeze: h.freeze, reason: protocol.ReasonSnapshot, since: h.since}
	if !h.key.IsZero() {
		th.outcome = &protocol.Outcome{Key: h.key}
		if !h.meta.DurableWanted {
			if th.outcome.Value, err = encode(protocol.SnapshotResult{ID: cp.ID}); err != nil {
				return "", err
			}
		} else {
			th.outcome = nil
		}
	}
	if err := s.thaw(t, th); err != nil {
		return cp.ID, s.lostOr(t, err)
	}
	s.emit(Event{Kind: EventCheckpoint, Timeline: t.id, Line: t.line, Checkpoint: cp.ID})
	return cp.ID, nil
}

// must answers an error when the timeline is not in the state an operation
// needs: it was ended meanwhile.
func (r *TimelineRecord) must(want State) error {
	if r.State != want {
		return protocol.Errorf(protocol.CodeSandboxStopped, "timeline %s is %s, not %s", r.ID, r.State, want)
	}
	return nil
}

// wake loads the next incarnation of a hibernated timeline: steps 5 to 7. old
// is the VM whose record goes away.
func (s *Sandbox) wake(t *timeline, cp Checkpoint, old protocol.VMID) error {
	defer s.pin(cp.ID)()
	id := protocol.NewVMID()
	t.mu.Lock()
	incarnation := t.incarnation + 1
	t.mu.Unlock()
	err := s.commit("journal.wake", func(tx Tx) error {
		return errors.Join(vms.delete(tx, string(old)),
			vms.put(tx, string(id), VMRecord{ID: id, Operation: "wake", Timeline: t.id, Incarnation: incarnation}))
	})
	if err != nil {
		return err
	}
	vm, err := s.machines.Load(t.ctx, LoadRequest{VM: id, Checkpoint: cp.ID, Siblings: 1, Rebase: true})
	if err != nil {
		return errors.Join(fmt.Errorf("load %s: %w", cp.ID, diskError(err)), s.dropVM(id, nil))
	}
	ss, err := s.greet(t.ctx, vm, cp.Freeze)
	if err != nil {
		return errors.Join(err, s.dropVM(id, vm))
	}
	err = s.commit("journal.moved", func(tx Tx) error {
		return errors.Join(
			vms.put(tx, string(id), VMRecord{ID: id, Timeline: t.id, Incarnation: incarnation, PID: vm.PID(), StartTime: vm.StartTime()}),
			timelines.change(tx, string(t.id), func(r *TimelineRecord) error {
				if err := r.must(StateHibernated); err != nil {
					return err
				}
				r.State, r.Hibernated, r.Incarnation, r.VM = StateLive, nil, incarnation, id
				return nil
			}))
	})
	if err != nil {
		ss.close()
		return errors.Join(err, s.dropVM(id, vm))
	}
	t.mu.Lock()
	t.vm, t.incarnation, t.current, t.recopied, t.written = vm, incarnation, ss, 0, 0
	t.mu.Unlock()
	return nil
}

// dropVM kills a VM of an operation that did not commit and removes its record.
func (s *Sandbox) dropVM(id protocol.VMID, vm VM) error {
	var err error
	if vm != nil {
		err = vm.Kill()
	}
	return errors.Join(err, s.commit("journal.drop", func(tx Tx) error { return vms.delete(tx, string(id)) }))
}

// hibernated gives up the running side of a timeline whose wake failed; its
// checkpoint can be woken or restored.
func (s *Sandbox) hibernated(t *timeline, why *protocol.Error) {
	if s.ctx.Err() != nil {
		return
	}
	current := false
	err := s.commit("journal.hibernated", func(tx Tx) error {
		return sandboxes.change(tx, string(s.id), func(r *SandboxRecord) error {
			current = r.FirstLine == t.line
			if current {
				r.State, r.Reason = StateHibernated, why
			}
			return nil
		})
	})
	if err != nil {
		s.log.Error("record a failed wake", "timeline", t.id, "error", err)
	}
	s.leave([]protocol.TimelineID{t.id}, why)
	if current {
		s.finished(why)
	}
}
