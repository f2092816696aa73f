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
	if err := s.recover(ctx); err != nil {
		s.Close()
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
		if err := v.vm.Resume(ctx); err != nil {
			return fmt.Errorf("un-pause VM of %s: %w", v.rec.ID, err)
		}
		t := s.newTimeline(v.rec, v.vm)
		t.take(t.ctx)
		s.mu.Lock()
		s.timelines[t.id] = t
		s.mu.Unlock()
	}
	return s.resumeOperations(ctx)
}

// sweep is row A: it kills what no live timeline owns and removes the
// leftovers; it returns the survivors.
func (s *Sandbox) sweep(ctx context.Context) (map[protocol.TimelineID]survivor, error) {
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
	alive := map[protocol.TimelineID]survivor{}
	var gone []protocol.VMID
	for _, r := range recs {
		if t, ok := owners[r.ID]; ok {
			vm, err := s.machines.Adopt(ctx, r)
			if err != nil {
				return nil, fmt.Errorf("adopt VM %s: %w", r.ID, err)
			}
			if vm != nil {
				alive[t.ID] = survivor{t, vm}
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
func (s *Sandbox) recordEnds(ctx context.Context, alive map[protocol.TimelineID]survivor) error {
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
		switch _, lives := alive[t.ID]; {
		case t.State == StateLive && !lives:
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
	err := s.view(func(tx Tx) error {
		var err error
		if bs, err = branches.all(tx); err != nil {
			return err
		}
		rs, err = restores.all(tx)
		return err
	})
	if err != nil {
		return err
	}
	list, err := s.checkpoints.List(ctx)
	if err != nil {
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
	answers := s.answers(bs, list)
	var all sync.WaitGroup
	for _, t := range s.running() {
		if !thawing[t.id] {
			all.Go(func() { s.rejoin(t, answers) })
		}
	}
	for _, r := range rs {
		if t := s.timeline(r.New); t != nil {
			all.Go(func() { s.rejoinRestore(t, r, answers) })
		} else if err := s.commit("journal.restored", func(tx Tx) error { return restores.delete(tx, string(r.New)) }); err != nil {
			return err
		}
	}
	for _, b := range bs {
		s.rejoinBranch(b, answers)
	}
	all.Wait()
	s.collectGarbage()
	return nil
}

// answer of an operation that committed under an earlier daemon.
type recorded struct {
	value   any
	durable protocol.CheckpointID // make this durable first
}

// answers lists what recorded operations owe their callers.
func (s *Sandbox) answers(bs []BranchRecord, list []Checkpoint) map[protocol.Key]recorded {
	out := map[protocol.Key]recorded{}
	for _, cp := range list {
		if cp.Kind == protocol.CallSnapshot && !cp.Key.IsZero() {
			r := recorded{value: protocol.SnapshotResult{ID: cp.ID}}
			if cp.DurableWanted && !cp.Durable {
				r.durable = cp.ID
			}
			out[cp.Key] = r
		}
	}
	for _, b := range bs {
		if !b.Key.IsZero() {
			out[b.Key] = recorded{value: protocol.BranchResult{ID: b.ID, Checkpoint: b.Checkpoint, N: len(b.Children)}}
		}
	}
	return out
}

// rejoin brings a surviving guest back: what it still waits for is answered
// from the records, or with CodeHostRestarted; a plain finish is sent again
// by the guest. The turn is held.
func (s *Sandbox) rejoin(t *timeline, answers map[protocol.Key]recorded) {
	defer t.release()
	if s.rejoinHeld(t, answers) {
		s.watch(t)
	}
}

func (s *Sandbox) rejoinHeld(t *timeline, answers map[protocol.Key]recorded) bool {
	ctx, cancel := context.WithTimeout(t.ctx, s.timeouts.Silence)
	ss, err := s.dial(ctx, t.machine())
	cancel()
	if err != nil {
		s.stopped(t, protocol.Errorf(protocol.CodeChildLost, "%v", err))
		return false
	}
	pendingCalls := ss.hello.Pending
	for _, p := range pendingCalls {
		if p.Kind != protocol.CallFinish {
			t.expectAck(p.Key) // taken: a call sent again is not run again
		}
	}
	ss.close()
	if !s.settle(t, protocol.Key{}, nil) {
		return false
	}
	for _, p := range pendingCalls {
		if p.Kind != protocol.CallFinish {
			s.task(func() { s.answerRecorded(t, p.Key, answers) })
		}
	}
	return true
}

func (s *Sandbox) answerRecorded(t *timeline, key protocol.Key, answers map[protocol.Key]recorded) {
	r, ok := answers[key]
	if !ok {
		s.answer(t, key, nil, protocol.Errorf(protocol.CodeHostRestarted, "the host was restarted while the call was pending"))
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

// thawedBefore tells whether a guest already runs as its timeline: the thaw
// of its first freeze arrived before the daemon ended.
func (s *Sandbox) thawedBefore(t *timeline) bool {
	ctx, cancel := context.WithTimeout(t.ctx, s.timeouts.Silence)
	defer cancel()
	ss, err := t.session(ctx)
	return err == nil && ss.hello.Timeline == t.id
}

func (s *Sandbox) rejoinRestore(t *timeline, r RestoreRecord, answers map[protocol.Key]recorded) {
	defer t.release()
	if s.thawedBefore(t) {
		err := s.commit("journal.restored", func(tx Tx) error { return restores.delete(tx, string(t.id)) })
		if err == nil && s.rejoinHeld(t, answers) {
			s.watch(t)
		}
		return
	}
	cp, err := s.checkpoints.Get(s.ctx, r.Target)
	if err != nil {
		cp = Checkpoint{ID: r.Target, Created: time.Now()}
	}
	cp.Freeze, cp.Key = r.Freeze, r.Caller
	s.started(t, cp)
	if err := s.thawRestored(t, cp, r.Payload); err == nil {
		s.watch(t)
	}
}

func (s *Sandbox) rejoinBranch(b BranchRecord, answers map[protocol.Key]recorded) {
	var fresh []*timeline
	for _, c := range b.Children {
		t := s.timeline(c.Timeline)
		if t == nil || c.State != ChildLoaded {
			continue
		}
		if s.thawedBefore(t) {
			s.task(func() { s.rejoin(t, answers) })
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
