package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Recover takes over a sandbox of an earlier process (section 9). Where its
// VMs are gone it comes back stopped, with its published checkpoints.
func Recover(ctx context.Context, d Deps, id protocol.SandboxID) (*Sandbox, error) {
	var rec SandboxRecord
	err := d.Journal.View(func(tx Tx) error {
		var err error
		rec, err = sandboxes.need(tx, string(id))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("recover sandbox: %w", err)
	}
	s := newSandbox(id, rec.Spec, d)
	defer s.bound(ctx)()
	if err := s.recover(ctx); err != nil {
		s.down() // its machines are left to the next try
		return nil, fmt.Errorf("recover sandbox %s: %w", id, err)
	}
	return s, nil
}

// survivor is a live timeline whose VM an earlier daemon left running.
type survivor struct {
	rec TimelineRecord
	vm  VM
}

func (s *Sandbox) recover(ctx context.Context) error {
	alive, err := s.sweep(ctx)
	if err != nil {
		return err
	}
	if err := s.recordEnds(ctx, alive); err != nil {
		return err
	}
	for _, v := range alive {
		t := s.newTimeline(v.rec, v.vm)
		t.turn <- struct{}{}
		s.mu.Lock()
		s.timelines[t.id] = t
		s.mu.Unlock()
	}
	for _, v := range alive {
		if err := v.vm.Resume(ctx); err != nil {
			s.stopped(s.timeline(v.rec.ID), protocol.Errorf(protocol.CodeChildLost, "un-pause: %v", err))
		}
	}
	if err := s.resumeOperations(ctx); err != nil {
		return err
	}
	var rec SandboxRecord
	err = s.view(func(tx Tx) error {
		rec, err = sandboxes.need(tx, string(s.id))
		return err
	})
	if err == nil && rec.State != StateRunning {
		s.finished(rec.Reason)
	}
	return err
}

// sweep is row A: it kills what no live timeline owns and removes the
// leftovers; it returns the survivors.
func (s *Sandbox) sweep(ctx context.Context) ([]survivor, error) {
	var recs []VMRecord
	owners := map[protocol.VMID]TimelineRecord{}
	err := s.view(func(tx Tx) error {
		var err error
		if recs, err = vms.all(tx); err != nil {
			return err
		}
		all, err := timelines.all(tx)
		for _, t := range all {
			if t.State == StateLive {
				owners[t.VM] = t
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var alive []survivor
	var gone []protocol.VMID
	for _, r := range recs {
		if t, ok := owners[r.ID]; ok {
			vm, err := s.machines.Adopt(ctx, r)
			if err != nil {
				s.log.Error("adopt VM", "vm", r.ID, "timeline", t.ID, "error", err)
			} else if vm != nil {
				alive = append(alive, survivor{t, vm})
				continue
			}
		}
		if err := s.machines.Sweep(ctx, r); err != nil {
			return nil, fmt.Errorf("sweep VM %s: %w", r.ID, err)
		}
		gone = append(gone, r.ID)
	}
	if err := s.checkpoints.Sweep(ctx); err != nil {
		return nil, err
	}
	return alive, s.commit("journal.swept", func(tx Tx) error {
		for _, id := range gone {
			if err := vms.delete(tx, string(id)); err != nil {
				return err
			}
		}
		return dropStreams(tx)
	})
}

// dropStreams removes streams without a live or hibernated timeline.
func dropStreams(tx Tx) error {
	all, err := streams.all(tx)
	if err != nil {
		return err
	}
	for _, r := range all {
		t, ok, err := timelines.get(tx, string(r.Owner))
		if err != nil {
			return err
		}
		if ok && (t.State == StateLive || t.State == StateHibernated) {
			continue
		}
		if err := streams.delete(tx, string(r.ID)); err != nil {
			return err
		}
	}
	return nil
}

// recordEnds is row B.
func (s *Sandbox) recordEnds(ctx context.Context, alive []survivor) error {
	lives := map[protocol.TimelineID]bool{}
	for _, v := range alive {
		lives[v.rec.ID] = true
	}
	var all []TimelineRecord
	err := s.view(func(tx Tx) error {
		var err error
		all, err = timelines.all(tx)
		return err
	})
	if err != nil {
		return err
	}
	why := map[protocol.TimelineID]*protocol.Error{}
	for _, t := range all {
		switch {
		case t.State == StateLive && !lives[t.ID]:
			why[t.ID] = protocol.Errorf(protocol.CodeChildLost, "its machine ended with the host process")
		case t.State == StateHibernated:
			if err := s.checkpoints.Check(ctx, t.Hibernated.Checkpoint); err != nil {
				why[t.ID] = protocol.Errorf(protocol.CodeCheckpointLost, "its checkpoint %s: %v", t.Hibernated.Checkpoint, err)
			}
		}
	}
	return s.commit("journal.ends", func(tx Tx) error {
		for _, t := range all {
			reason := why[t.ID]
			if reason == nil {
				continue
			}
			err := timelines.change(tx, string(t.ID), func(r *TimelineRecord) error {
				r.State, r.Hibernated = StateLive, nil
				return nil
			})
			if err != nil {
				return err
			}
			if _, err := s.stopTimeline(tx, t.ID, reason); err != nil {
				return err
			}
		}
		return nil
	})
}

// resumeOperations is row C. Every running timeline's turn is held by the
// caller and released here.
func (s *Sandbox) resumeOperations(ctx context.Context) error {
	var bs []BranchRecord
	var rs []RestoreRecord
	var asleep []TimelineRecord
	err := s.view(func(tx Tx) error {
		var err error
		if bs, err = branches.all(tx); err != nil {
			return err
		}
		if rs, err = restores.all(tx); err != nil {
			return err
		}
		all, err := timelines.all(tx)
		for _, r := range all {
			if r.State == StateHibernated && r.Hibernated.Wake && s.resident {
				asleep = append(asleep, r)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.readOwed(ctx, bs); err != nil {
		return err
	}
	thawing := map[protocol.TimelineID]bool{}
	for _, r := range rs {
		thawing[r.New] = true
	}
	for _, b := range bs {
		for _, c := range b.Children {
			thawing[c.Timeline] = thawing[c.Timeline] || c.State == ChildLoaded
		}
	}
	var all sync.WaitGroup
	for _, t := range s.running() {
		if !thawing[t.id] {
			all.Go(func() { s.rejoin(t) })
		}
	}
	for _, r := range rs {
		if t := s.timeline(r.New); t != nil {
			all.Go(func() { s.rejoinRestore(t, r) })
		} else if err := s.record("journal.restored", func(tx Tx) error { return restores.delete(tx, string(r.New)) }); err != nil {
			return err
		}
	}
	for _, r := range asleep {
		all.Go(func() { s.wakeMoved(r) })
	}
	for _, b := range bs {
		s.rejoinBranch(b, &all)
	}
	if err := s.expireAgain(); err != nil {
		return err
	}
	all.Wait()
	close(s.recovered)
	s.collectGarbage()
	return nil
}

// expireAgain starts the clocks of children with a timeout.
func (s *Sandbox) expireAgain() error {
	return s.view(func(tx Tx) error {
		all, err := lines.all(tx)
		for _, l := range all {
			if !l.Expires.IsZero() && !l.Detached && s.timeline(l.Timeline) != nil {
				s.expire(l)
			}
		}
		return err
	})
}

// recorded is the answer of an operation that committed under an earlier
// daemon.
type recorded struct {
	value   any
	durable protocol.CheckpointID // make this durable first
}

// readOwed lists what recorded operations owe their callers.
func (s *Sandbox) readOwed(ctx context.Context, bs []BranchRecord) error {
	list, err := s.checkpoints.List(ctx)
	if err != nil {
		return err
	}
	s.owed = map[protocol.Key]recorded{}
	for _, cp := range list {
		if cp.Kind == protocol.CallSnapshot && !cp.Key.IsZero() {
			r := recorded{value: protocol.SnapshotResult{ID: cp.ID}}
			if cp.DurableWanted && !cp.Durable {
				r.durable = cp.ID
			}
			s.owed[cp.Key] = r
		}
	}
	for _, b := range bs {
		if !b.Key.IsZero() {
			s.owed[b.Key] = recorded{value: protocol.BranchResult{ID: b.ID, Checkpoint: b.Checkpoint, N: len(b.Children)}}
		}
	}
	return nil
}

// rejoin brings a surviving guest back; what it still waits for is answered
// from the records, or with CodeHostRestarted. The turn is held.
func (s *Sandbox) rejoin(t *timeline) {
	defer t.release()
	if t.ctx.Err() == nil && s.settle(t, protocol.Key{}, nil) {
		s.watch(t)
	}
}

func (s *Sandbox) answerRecorded(t *timeline, key protocol.Key) {
	r, ok := s.owed[key]
	if !ok {
		s.answer(t, key, nil, protocol.Errorf(protocol.CodeHostRestarted, "the call was lost with the host's process, or on its way to it"))
		return
	}
	if r.durable != "" {
		if err := s.checkpoints.Durable(s.ctx, r.durable); err != nil {
			s.answer(t, key, nil, errors.Join(diskError(err), s.checkpoints.Remove(s.ctx, r.durable)))
			return
		}
	}
	s.answer(t, key, r.value, nil)
}

// wakeMoved loads the next incarnation of a timeline whose move was cut short,
// and lets it go on: its callers wait in the checkpoint.
func (s *Sandbox) wakeMoved(r TimelineRecord) {
	t := s.newTimeline(r, nil)
	t.turn <- struct{}{}
	defer t.release()
	cp, err := s.checkpoints.Get(s.ctx, r.Hibernated.Checkpoint)
	if err == nil {
		err = s.wake(t, cp, r.VM)
	}
	if err != nil {
		s.hibernated(t, protocol.Errorf(protocol.CodeOf(err), "wake: %v", err))
		return
	}
	// The answer follows, as for a timeline that kept its machine.
	if err := s.thaw(t, thawing{freeze: cp.Freeze, reason: protocol.ReasonWake, since: cp.Created}); err != nil {
		s.lostOr(t, err)
		return
	}
	s.watch(t)
}

// thawedBefore tells whether a guest already runs as its timeline: the thaw
// of its first freeze arrived before the daemon ended.
func (s *Sandbox) thawedBefore(t *timeline) bool {
	ctx, cancel := context.WithTimeout(t.ctx, s.timeouts.Silence)
	defer cancel()
	ss, err := t.session(ctx)
	return err == nil && ss.hello.Timeline == t.id
}

func (s *Sandbox) rejoinRestore(t *timeline, r RestoreRecord) {
	if s.thawedBefore(t) {
		err := s.record("journal.restored", func(tx Tx) error { return restores.delete(tx, string(t.id)) })
		if err == nil {
			s.rejoin(t)
		}
		return
	}
	defer t.release()
	cp, err := s.checkpoints.Get(s.ctx, r.Target)
	if err != nil {
		cp = Checkpoint{ID: r.Target, Line: r.Line, Created: time.Now()}
	}
	cp.Freeze, cp.Key = r.Freeze, r.Caller
	s.started(t, cp)
	if err := s.thawRestored(t, cp, r.Payload, r.Execs); err == nil {
		s.watch(t)
	}
}

// rejoinBranch goes on with a branch. Children that run already may have made
// branches themselves, so they count as the other survivors do.
func (s *Sandbox) rejoinBranch(b BranchRecord, survivors *sync.WaitGroup) {
	var fresh []*timeline
	for _, c := range b.Children {
		t := s.timeline(c.Timeline)
		if t == nil || c.State != ChildLoaded {
			continue
		}
		if s.thawedBefore(t) {
			survivors.Go(func() { s.rejoin(t) })
			continue
		}
		fresh = append(fresh, t)
	}
	s.conduct(b, slices.Clip(fresh))
}

// AtRest tells whether a sandbox needs no recovery: nothing of it runs, and
// no operation is half-way.
func AtRest(j Journal, id protocol.SandboxID) (bool, error) {
	rest := true
	err := j.View(func(tx Tx) error {
		for _, table := range []string{vms.name, branches.name, restores.name} {
			if err := tx.Each(table, func(string, []byte) error { rest = false; return nil }); err != nil {
				return err
			}
		}
		all, err := timelines.all(tx)
		for _, t := range all {
			rest = rest && t.State != StateLive
		}
		return err
	})
	return rest, err
}
