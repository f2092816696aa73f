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

func (s *Sandbox) accountCapture(t *timeline, c Capture) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recopied += min(t.written, c.Bytes())
	t.written = c.Bytes()
}

// rebase moves a held timeline onto a new base made of this capture (section
// 5), up to the thaw of the new machine. On an error the caller of the snapshot
// has had its outcome, or the timeline has no machine any more.
func (s *Sandbox) rebase(ctx context.Context, t *timeline, h *held) (Checkpoint, error) {
	cp, err := h.capture.Publish(ctx)
	if err != nil {
		return cp, s.undo(t, h, diskError(err))
	}
	old := t.machine()
	err = s.commit("journal.move", func(tx Tx) error {
		return timelines.change(tx, string(t.id), func(r *TimelineRecord) error {
			if err := r.must(StateLive); err != nil {
				return err
			}
			r.State, r.Hibernated = StateHibernated, &Hibernated{Checkpoint: cp.ID, Freeze: h.freeze, Wake: true}
			return s.currentIs(tx, t.line, StateHibernated, nil)
		})
	})
	if err != nil {
		return cp, s.undoPublished(t, h, err)
	}
	t.detach()
	if err := old.Kill(); err != nil {
		s.log.Error("kill VM", "timeline", t.id, "error", err)
	}
	if err := s.wake(t, cp, old.ID()); err != nil {
		why := protocol.Errorf(protocol.CodeOf(err), "move to a new base: %v", err)
		s.hibernated(t, why)
		return cp, errors.Join(why, errSettled)
	}
	return cp, nil
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
			}),
			s.currentIs(tx, t.line, StateRunning, nil))
	}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.timelines[t.id] = t
		t.mu.Lock()
		defer t.mu.Unlock()
		t.vm, t.incarnation, t.current, t.recopied, t.written = vm, incarnation, ss, 0, 0
	})
	if err != nil {
		ss.close()
		return errors.Join(err, s.dropVM(id, vm))
	}
	return nil
}

// currentIs records the state of the sandbox when line is its first.
func (s *Sandbox) currentIs(tx Tx, line protocol.LineID, state State, why *protocol.Error) error {
	return sandboxes.change(tx, string(s.id), func(r *SandboxRecord) error {
		if r.FirstLine == line {
			r.State, r.Reason = state, why
		}
		return nil
	})
}

// dropVM kills a VM of an operation that did not commit and removes its record.
func (s *Sandbox) dropVM(id protocol.VMID, vm VM) error {
	var err error
	if vm != nil {
		err = vm.Kill()
	}
	return errors.Join(err, s.record("journal.drop", func(tx Tx) error { return vms.delete(tx, string(id)) }))
}

// hibernated gives up the running side of a timeline whose wake failed; its
// checkpoint can be woken or restored.
func (s *Sandbox) hibernated(t *timeline, why *protocol.Error) {
	if s.ctx.Err() != nil {
		return
	}
	err := s.record("journal.hibernated", func(tx Tx) error { return s.currentIs(tx, t.line, StateHibernated, why) })
	if err != nil {
		s.log.Error("record a failed wake", "timeline", t.id, "error", err)
	}
	s.leave([]protocol.TimelineID{t.id}, why)
	if current, err := s.isCurrent(t); err == nil && current {
		s.finished(why)
	}
}
