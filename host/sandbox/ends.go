package sandbox

import (
	"errors"
	"maps"
	"slices"

	"github.com/ratoon-project/ratoon/protocol"
)

// endTimelines marks timelines ended, inside a transaction, and gives those
// of their slots that have none a result.
func (s *Sandbox) endTimelines(tx Tx, ids []protocol.TimelineID, why *protocol.Error) error {
	for _, id := range ids {
		r, err := timelines.need(tx, string(id))
		if err != nil {
			return err
		}
		if r.State == StateEnded {
			continue
		}
		r.State, r.Reason, r.Hibernated = StateEnded, why, nil
		over := why
		if over == nil {
			over = protocol.Errorf(protocol.CodeSandboxStopped, "its parent has ended")
		}
		if err := errors.Join(timelines.put(tx, string(id), r), endWaiting(tx, id, over), streams.delete(tx, string(r.Stream)), s.dropResults(tx, id)); err != nil {
			return err
		}
	}
	return nil
}

// dropResults removes what nobody can collect any more: the results of the
// branches that an ended timeline made.
func (s *Sandbox) dropResults(tx Tx, parent protocol.TimelineID) error {
	all, err := results.all(tx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Parent == parent {
			if err := results.delete(tx, resultKey(r.Branch, r.Result.Index)); err != nil {
				return err
			}
		}
	}
	return nil
}

// descendants lists the live, hibernated and stopped timelines below a
// timeline: those of lines whose branch it made, and so on.
func descendants(tx Tx, of protocol.TimelineID) ([]protocol.TimelineID, error) {
	all, err := lines.all(tx)
	if err != nil {
		return nil, err
	}
	var out []protocol.TimelineID
	next := []protocol.TimelineID{of}
	for len(next) > 0 {
		parent := next[0]
		next = next[1:]
		for _, l := range all {
			if l.Parent != parent || l.Detached || l.Timeline == "" {
				continue
			}
			r, err := timelines.need(tx, string(l.Timeline))
			if err != nil {
				return nil, err
			}
			next = append(next, r.ID)
			if r.State != StateEnded {
				out = append(out, r.ID)
			}
		}
	}
	return out, nil
}

// fillSlot writes the result of a line's slot, once.
func (s *Sandbox) fillSlot(tx Tx, line LineRecord, r protocol.ChildResult) error {
	if line.Branch == "" || line.Detached {
		return nil
	}
	r.Index = line.Index
	return putResult(tx, line.Branch, line.Parent, r)
}

// putResult writes a result unless the slot has one, or its parent cannot
// collect it.
func putResult(tx Tx, b protocol.BranchID, parent protocol.TimelineID, r protocol.ChildResult) error {
	key := resultKey(b, r.Index)
	_, there, err := results.get(tx, key)
	if err != nil || there {
		return err
	}
	if parent != "" {
		p, ok, err := timelines.get(tx, string(parent))
		if err != nil {
			return err
		}
		if ok && p.State == StateEnded {
			return nil
		}
	}
	return results.put(tx, key, ResultRecord{Branch: b, Parent: parent, Result: r, Value: r.Result})
}

// leave ends the running side of timelines whose records say that they are
// over: kills their VMs, then removes the VMs' records.
func (s *Sandbox) leave(ids []protocol.TimelineID, why *protocol.Error) {
	var gone []*timeline
	s.mu.Lock()
	for _, id := range ids {
		if t := s.timelines[id]; t != nil {
			gone = append(gone, t)
			delete(s.timelines, id)
		}
	}
	s.reserved += len(gone) // until they are killed
	s.mu.Unlock()
	for _, t := range gone {
		if err := t.machine().Kill(); err != nil {
			s.log.Error("kill VM", "timeline", t.id, "error", err)
		}
		t.close()
	}
	s.unreserve(len(gone))
	if len(gone) > 0 {
		err := s.record("journal.left", func(tx Tx) error {
			for _, t := range gone {
				if err := vms.delete(tx, string(t.machine().ID())); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errDown) {
			s.log.Error("remove records of ended VMs", "error", err)
		}
	}
	for _, t := range gone {
		s.emit(Event{Kind: EventTimelineEnded, Timeline: t.id, Line: t.line, Error: why})
	}
	s.wakeWaiters()
	s.collectGarbage()
}

// wakeWaiters makes everybody who waits for results look again.
func (s *Sandbox) wakeWaiters() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for b, c := range s.waiters {
		close(c)
		delete(s.waiters, b)
	}
}

// collectGarbage removes internal captures to which nothing refers, and the
// oldest automatic checkpoints beyond those that are kept.
func (s *Sandbox) collectGarbage() {
	if s.garbage.enter(s.ctx) != nil {
		return
	}
	defer s.garbage.leave()
	for again := true; again; {
		var err error
		if again, err = s.collect(); err != nil {
			s.log.Error("collect checkpoints", "error", err)
			return
		}
	}
}

// collect removes what is not needed, and tells whether to look again.
func (s *Sandbox) collect() (again bool, err error) {
	// An operation pins before it commits and unpins after: pins are read
	// first, so that what it needs is seen in one of the two.
	s.mu.Lock()
	pinned := maps.Clone(s.pins)
	s.mu.Unlock()
	list, err := s.checkpoints.List(s.ctx)
	if err != nil {
		return false, err
	}
	used, err := Needed(s.journal)
	if err != nil {
		return false, err
	}
	auto := 0
	for _, cp := range slices.Backward(list) {
		if cp.Class == ClassAuto {
			auto++
		}
		switch {
		case used[cp.ID] || cp.Class == ClassNamed || cp.Class == ClassPinned || cp.Class == ClassAuto && auto <= s.spec.AutoKeep:
		case pinned[cp.ID] > 0:
			again = !s.collectLater(cp.ID) || again
		default:
			if err := s.checkpoints.Remove(s.ctx, cp.ID); err != nil && protocol.CodeOf(err) != protocol.CodeCheckpointInUse {
				s.log.Error("remove checkpoint", "checkpoint", cp.ID, "error", err)
			}
		}
	}
	return again, nil
}

// collectLater leaves a checkpoint to the end of the operation that pins it.
// It is false when that has come meanwhile.
func (s *Sandbox) collectLater(id protocol.CheckpointID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins[id] == 0 {
		return false
	}
	s.unwanted[id] = true
	return true
}
