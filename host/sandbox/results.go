package sandbox

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

func itoa(n int) string { return strconv.Itoa(n) }

// ownBranch answers CodeWrongTimeline unless the timeline made the branch.
func ownBranch(tx Tx, t protocol.TimelineID, b protocol.BranchID) error {
	var parent protocol.TimelineID
	found := false
	if op, ok, err := branches.get(tx, string(b)); err != nil {
		return err
	} else if ok {
		parent, found = op.Parent, true
	}
	if !found {
		all, err := lines.all(tx)
		if err != nil {
			return err
		}
		for _, l := range all {
			if l.Branch == b {
				parent, found = l.Parent, true
			}
		}
	}
	if !found {
		res, err := results.all(tx)
		if err != nil {
			return err
		}
		for _, r := range res {
			if r.Branch == b {
				parent, found = r.Parent, true
			}
		}
	}
	switch {
	case !found:
		return protocol.Errorf(protocol.CodeNotFound, "no branch %s", b)
	case parent != t:
		return protocol.Errorf(protocol.CodeWrongTimeline, "branch %s was made by timeline %s, this is %s", b, parent, t)
	}
	return nil
}

// awaitResults answers results(): at once when there is one that the caller
// has not, else when one comes in.
func (s *Sandbox) awaitResults(ctx context.Context, t *timeline, a protocol.ResultsArgs) (any, error) {
	var expired <-chan time.Time
	if a.Timeout > 0 {
		timer := time.NewTimer(time.Duration(a.Timeout))
		defer timer.Stop()
		expired = timer.C
	}
	for {
		changed := s.waiter(a.Branch)
		out, err := s.newResults(t, a)
		if err != nil || len(out.Results) > 0 || a.Timeout < 0 {
			return out, err
		}
		select {
		case <-changed:
		case <-expired:
			return out, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// waiter is closed at the next change of any result.
func (s *Sandbox) waiter(b protocol.BranchID) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.waiters[b]
	if c == nil {
		c = make(chan struct{})
		s.waiters[b] = c
	}
	return c
}

func (s *Sandbox) newResults(t *timeline, a protocol.ResultsArgs) (protocol.ResultsResult, error) {
	out := protocol.ResultsResult{Results: []protocol.ChildResult{}}
	var collected []string
	err := s.view(func(tx Tx) error {
		if err := ownBranch(tx, t.id, a.Branch); err != nil {
			return err
		}
		all, err := results.all(tx)
		size := 0
		for _, r := range all {
			if r.Branch != a.Branch {
				continue
			}
			if slices.Contains(a.Have, r.Result.Index) {
				if len(r.Value) > 0 {
					collected = append(collected, resultKey(r.Branch, r.Result.Index))
				}
				continue
			}
			if size += len(r.Value); size > protocol.MaxPayload && len(out.Results) > 0 {
				break // the next call brings the rest
			}
			r.Result.Result = r.Value
			out.Results = append(out.Results, r.Result)
		}
		return err
	})
	if err == nil && len(collected) > 0 {
		err = s.commit("journal.collected", func(tx Tx) error {
			for _, key := range collected {
				r, ok, err := results.get(tx, key)
				if err != nil {
					return err
				}
				if ok {
					r.Value, r.Collected = nil, true
					if err := results.put(tx, key, r); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return out, err
}

// cancelChild ends one child of the caller's branch.
func (s *Sandbox) cancelChild(t *timeline, a protocol.CancelArgs) error {
	if err := s.view(func(tx Tx) error { return ownBranch(tx, t.id, a.Branch) }); err != nil {
		return err
	}
	return s.endSlot(t.ctx, a.Branch, a.Index, protocol.Errorf(protocol.CodeCancelled, "cancelled by its parent"))
}

// endSlot ends whatever holds a slot: a waiting child, or its line's timeline.
// A slot that has a result stays as it is.
func (s *Sandbox) endSlot(ctx context.Context, b protocol.BranchID, index int, why *protocol.Error) error {
	var id protocol.TimelineID
	err := s.commit("journal.cancel", func(tx Tx) error {
		op, ok, err := branches.get(tx, string(b))
		if err != nil {
			return err
		}
		for i := range op.Children {
			if c := &op.Children[i]; ok && c.Index == index && c.State == ChildWaiting {
				c.State = ChildOver
				if err := branches.put(tx, string(b), op); err != nil {
					return err
				}
				return putResult(tx, b, op.Parent, protocol.ChildResult{Index: index, Error: why})
			}
		}
		all, err := lines.all(tx)
		for _, l := range all {
			if l.Branch == b && l.Index == index && !l.Detached {
				id = l.Timeline
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	s.wakeWaiters()
	t := s.timeline(id)
	if t == nil {
		return nil
	}
	held := s.newTurns()
	defer held.release()
	if err := held.take(ctx, id); err != nil {
		return err
	}
	if t.ctx.Err() != nil {
		return nil
	}
	if err := s.endLine(ctx, t, "journal.cancelled", protocol.ChildResult{Error: why}, why); err != nil && t.ctx.Err() == nil {
		return err
	}
	return nil
}

// discard forgets the kept checkpoints of a branch's results.
func (s *Sandbox) discard(t *timeline, a protocol.DiscardArgs) error {
	err := s.commit("journal.discard", func(tx Tx) error {
		if err := ownBranch(tx, t.id, a.Branch); err != nil {
			return err
		}
		all, err := results.all(tx)
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.Branch == a.Branch {
				r.Result.Checkpoint, r.Value, r.Collected = "", nil, true
				if err := results.put(tx, resultKey(r.Branch, r.Result.Index), r); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil {
		s.collectGarbage()
	}
	return err
}
