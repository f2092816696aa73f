package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// branching is one branch up to its commit.
type branching struct {
	args   protocol.BranchArgs
	key    protocol.Key // zero: an operator's
	parent *timeline    // nil: an operator's
	line   protocol.LineID
	cp     Checkpoint
	rec    BranchRecord
	copies map[int]*newcopy // of the first wave, by index
	lines  map[int]*LineRecord
	failed map[int]error
	kids   []*timeline
}

// Branch makes n children at a checkpoint for an operator. They belong to the
// first line's branch, and nobody is waiting for their results.
func (s *Sandbox) Branch(ctx context.Context, a protocol.BranchArgs) (protocol.BranchID, error) {
	b := &branching{args: a}
	ctx, done, err := s.begin(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	err = s.view(func(tx Tx) error {
		rec, err := sandboxes.need(tx, string(s.id))
		b.line = rec.FirstLine
		return err
	})
	if err == nil && a.At == "" {
		err = protocol.Errorf(protocol.CodeInvalidArgument, "an operator's branch needs a checkpoint to start from")
	}
	if err == nil {
		_, err = s.branch(ctx, b)
	}
	return b.rec.ID, err
}

func (s *Sandbox) branchCall(t *timeline, key protocol.Key, a protocol.BranchArgs) (any, error) {
	return s.branch(t.ctx, &branching{args: a, key: key, parent: t, line: t.line})
}

// branch runs section 7 up to the answer of the parent.
func (s *Sandbox) branch(ctx context.Context, b *branching) (any, error) {
	if err := checkBranch(&b.args); err != nil {
		return nil, err
	}
	if b.parent != nil {
		if err := b.parent.take(ctx); err != nil {
			return nil, err
		}
		defer b.parent.release()
		op, done := b.parent.operation()
		defer done()
		ctx = op
	}
	unreserve, err := s.reserveBranch(b)
	if err != nil {
		return nil, err
	}
	defer unreserve()
	unpin, err := s.branchPoint(ctx, b)
	if err != nil {
		return nil, err
	}
	err = s.loadWave(ctx, b)
	if err == nil {
		err = s.commit("journal.branch", func(tx Tx) error { return s.commitBranch(tx, b) }, func() { s.enterChildren(b) })
		if err != nil {
			err = s.branchFailed(b, errors.Join(err, s.dropCopies(b.loading()...)))
		}
	}
	unpin()
	if err != nil {
		s.collectGarbage() // the capture
		return nil, err
	}
	s.conduct(b.rec, b.kids)
	s.wakeWaiters()
	return protocol.BranchResult{ID: b.rec.ID, Checkpoint: b.cp.ID, N: b.args.N}, nil
}

// checkBranch completes the arguments or refuses them.
func checkBranch(a *protocol.BranchArgs) error {
	per := func(what string, n int) error {
		if n != 0 && n != a.N {
			return protocol.Errorf(protocol.CodeInvalidArgument, "%d %s for %d children; want none or one per child", n, what, a.N)
		}
		return nil
	}
	switch {
	case a.N < 1 || a.N > protocol.MaxBranch:
		return protocol.Errorf(protocol.CodeInvalidArgument, "branch(%d): want 1 to %d children", a.N, protocol.MaxBranch)
	case a.MaxLive < 0:
		return protocol.Errorf(protocol.CodeInvalidArgument, "max_live=%d: want at least 1", a.MaxLive)
	case a.MinOK < 0 || a.MinOK > a.N:
		return protocol.Errorf(protocol.CodeInvalidArgument, "min_ok=%d: want 1 to %d", a.MinOK, a.N)
	case a.Timeout < 0:
		return protocol.Errorf(protocol.CodeInvalidArgument, "timeout=%v: want a positive time", time.Duration(a.Timeout))
	}
	for _, l := range a.Labels {
		if len(l) > protocol.MaxLabel {
			return protocol.Errorf(protocol.CodeTooLarge, "label of %d bytes; want at most %d", len(l), protocol.MaxLabel)
		}
	}
	return errors.Join(per("payloads", len(a.Payloads)), per("env values", len(a.Env)), per("labels", len(a.Labels)))
}

// wave is how many children are loaded before the commit.
func wave(a protocol.BranchArgs) int {
	if a.MaxLive > 0 {
		return min(a.N, a.MaxLive)
	}
	return a.N
}

// branchPoint finds or makes the checkpoint that the children are loaded
// from. The parent runs on after it.
func (s *Sandbox) branchPoint(ctx context.Context, b *branching) (unpin func(), err error) {
	if b.args.At != "" {
		unpin = s.pin(b.args.At)
		if b.cp, err = s.target(ctx, b.args.At); err != nil {
			unpin()
		}
		return unpin, err
	}
	if err := s.checkDisk(ctx); err != nil {
		return nil, err
	}
	t := b.parent
	h, err := s.hold(ctx, t, Checkpoint{Class: ClassInternal, Label: "branch", Key: b.key, Kind: protocol.CallBranch})
	if err != nil {
		return nil, err
	}
	unpin = s.pin(h.meta.ID)
	if b.cp, err = s.releaseAndPublish(ctx, t, h); err != nil {
		unpin()
		return nil, s.undo(t, h, err)
	}
	if err := s.thaw(t, thawing{freeze: h.freeze, reason: protocol.ReasonBranch, since: h.since}); err != nil {
		unpin()
		return nil, s.lostOr(t, err)
	}
	return unpin, nil
}

// loadWave loads the first children, and drops all of them when fewer than
// min_ok say hello.
func (s *Sandbox) loadWave(ctx context.Context, b *branching) error {
	a := b.args
	b.rec = BranchRecord{ID: protocol.NewBranchID(), Key: b.key, ParentLine: b.line, Checkpoint: b.cp.ID, Freeze: b.cp.Freeze,
		Caller: b.cp.Key, CallerKind: b.cp.Kind, MaxLive: a.MaxLive, Timeout: time.Duration(a.Timeout)}
	if b.parent != nil {
		b.rec.Parent = b.parent.id
	}
	var parent LineRecord
	err := s.view(func(tx Tx) error {
		var err error
		parent, err = lines.need(tx, string(b.line))
		return err
	})
	if err != nil {
		return err
	}
	b.copies, b.lines, b.failed = map[int]*newcopy{}, map[int]*LineRecord{}, map[int]error{}
	for i := range a.N {
		l := &LineRecord{ID: protocol.NewLineID(), Depth: parent.Depth + 1, Branch: b.rec.ID, Index: i, Parent: b.rec.Parent}
		c := BranchChild{Index: i, State: ChildWaiting, Line: l.ID}
		if len(a.Payloads) > 0 {
			c.Payload = a.Payloads[i]
		}
		if len(a.Labels) > 0 {
			l.Label = a.Labels[i]
		}
		if len(a.Env) > 0 {
			l.Env = a.Env[i]
		}
		b.lines[i] = l
		if i < wave(a) {
			b.copies[i] = s.newCopy(b.cp, l.ID)
			b.copies[i].op = "branch"
		}
		b.rec.Children = append(b.rec.Children, c)
	}
	err = s.commit("journal.intend", func(tx Tx) error {
		for _, c := range b.loading() {
			if err := c.intend(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return s.branchFailed(b, err)
	}
	s.loadAll(ctx, b)
	need := wave(a)
	if a.MinOK > 0 {
		need = min(a.MinOK, need)
	}
	var lost []*newcopy
	for _, i := range slices.Sorted(maps.Keys(b.failed)) {
		lost = append(lost, b.copies[i])
	}
	if len(b.copies)-len(b.failed) < need || b.parent != nil && isClosed(b.parent.machine().Done()) {
		lost = b.loading()
	}
	if len(lost) == 0 {
		return nil
	}
	if err := s.dropCopies(lost...); err != nil {
		return s.branchFailed(b, err)
	}
	for i := range b.failed {
		delete(b.copies, i)
	}
	if len(lost) > len(b.failed) || len(b.copies) < need {
		return s.branchFailed(b, nil)
	}
	return nil
}

// loadAll loads the copies of a wave side by side.
func (s *Sandbox) loadAll(ctx context.Context, b *branching) {
	var mu sync.Mutex
	var all sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.NumCPU())
	for _, i := range slices.Sorted(maps.Keys(b.copies)) {
		c := b.copies[i]
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := s.loadCopy(ctx, c, len(b.copies), b.cp); err != nil {
				mu.Lock()
				b.failed[i] = err
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

// loading lists the copies of the wave in the order of their index.
func (b *branching) loading() []*newcopy {
	var out []*newcopy
	for _, i := range slices.Sorted(maps.Keys(b.copies)) {
		out = append(out, b.copies[i])
	}
	return out
}

// branchFailed is the parent's error, with the reason of each child.
func (s *Sandbox) branchFailed(b *branching, err error) error {
	reasons := map[string]any{}
	first := err
	for _, i := range slices.Sorted(maps.Keys(b.failed)) {
		reasons[strconv.Itoa(i)] = b.failed[i].Error()
		if first == nil {
			first = b.failed[i]
		}
	}
	if first == nil {
		first = errors.New("the parent's machine ended")
	}
	if errors.Is(err, errDown) {
		return err
	}
	return protocol.Errorf(protocol.CodeBranchFailed, "branch(%d): %d children could not be started: %v", b.args.N, max(1, len(b.failed)), first).With("children", reasons)
}

// commitBranch writes the op record, lines, timelines and the results of
// those that failed.
func (s *Sandbox) commitBranch(tx Tx, b *branching) error {
	if b.parent != nil {
		r, err := timelines.need(tx, string(b.parent.id))
		if err != nil {
			return err
		}
		if err := r.must(StateLive); err != nil {
			return err
		}
	} else if err := s.parentLives(tx, ""); err != nil {
		return err
	}
	parent, err := lines.need(tx, string(b.line))
	if err != nil {
		return err
	}
	rec := b.rec
	rec.Children = slices.Clone(rec.Children)
	for i := range rec.Children {
		c, copied := &rec.Children[i], b.copies[i]
		b.lines[i].Node = parent.Node + "." + strconv.Itoa(parent.Children+i)
		switch failure := b.failed[i]; {
		case failure != nil:
			c.State = ChildOver
			lost := protocol.Errorf(protocol.CodeChildLost, "the child could not be started: %v", failure)
			if err := putResult(tx, rec.ID, rec.Parent, protocol.ChildResult{Index: i, Error: lost}); err != nil {
				return err
			}
		case copied != nil:
			c.State, c.Timeline, c.VM, c.Stream = ChildLoaded, copied.timeline, copied.vmID, copied.stream
			b.lines[i].Expires = rec.expires()
			if err := copied.become(tx, *b.lines[i]); err != nil {
				return err
			}
		default:
			if err := lines.put(tx, string(b.lines[i].ID), *b.lines[i]); err != nil {
				return err
			}
		}
	}
	b.rec = rec
	parent.Children += b.args.N
	return errors.Join(branches.put(tx, string(rec.ID), rec), lines.put(tx, string(parent.ID), parent))
}

// expires is when the time of a child that starts now is over; zero: never.
func (b BranchRecord) expires() time.Time {
	if b.Timeout == 0 {
		return time.Time{}
	}
	return time.Now().UTC().Add(b.Timeout)
}

// enterChildren makes the loaded children timelines of this process.
func (s *Sandbox) enterChildren(b *branching) {
	for _, c := range b.loading() {
		b.kids = append(b.kids, s.enter(c, ""))
	}
}

// conduct carries a committed branch to its end: thaws its children, loads
// later waves, removes the record when it is over.
func (s *Sandbox) conduct(rec BranchRecord, kids []*timeline) {
	s.task(func() {
		var all sync.WaitGroup
		for _, t := range kids {
			all.Go(func() { s.thawChild(rec, t) })
		}
		all.Wait()
		s.laterWaves(rec)
		s.awaitAnswered(rec)
		if s.ctx.Err() != nil {
			return
		}
		err := s.record("journal.branched", func(tx Tx) error { return branches.delete(tx, string(rec.ID)) })
		if err != nil {
			s.log.Error("close the record of a branch", "branch", rec.ID, "error", err)
		}
		s.collectGarbage()
	})
}

// awaitAnswered waits until the parent has the outcome of its branch, or is
// gone: until then a restarted daemon must know it.
func (s *Sandbox) awaitAnswered(rec BranchRecord) {
	select {
	case <-s.recovered: // its guest is asked only then
	case <-s.ctx.Done():
		return
	}
	t := s.timeline(rec.Parent)
	if t == nil || !t.knows(rec.Key) {
		return
	}
	select {
	case <-t.expectAck(rec.Key):
	case <-t.ctx.Done():
	}
}

// thawChild runs step 9 for one child whose turn is held.
func (s *Sandbox) thawChild(rec BranchRecord, t *timeline) {
	defer t.release()
	i := slices.IndexFunc(rec.Children, func(c BranchChild) bool { return c.Timeline == t.id })
	child := rec.Children[i]
	cp, err := s.checkpoints.Get(s.ctx, rec.Checkpoint)
	if err != nil {
		cp = Checkpoint{ID: rec.Checkpoint, Created: time.Now()}
	}
	s.started(t, cp)
	th := thawing{freeze: rec.Freeze, reason: protocol.ReasonBranch, since: cp.Created, newLine: true}
	if !rec.Caller.IsZero() {
		v, err := encode(childOutcome(rec, child))
		if err != nil {
			s.log.Error("encode a child's outcome", "error", err)
		}
		th.outcome = &protocol.Outcome{Key: rec.Caller, Value: v}
	}
	if err := s.thaw(t, th); err != nil {
		s.lostOr(t, err)
		return
	}
	s.watch(t)
	if line, err := s.lineOf(t); err == nil && !line.Expires.IsZero() {
		s.expire(line)
	}
}

// childOutcome is what the call that the checkpoint was made in returns in a
// child.
func childOutcome(rec BranchRecord, child BranchChild) any {
	if rec.CallerKind == protocol.CallBranch {
		return protocol.BranchResult{ID: rec.ID, Checkpoint: rec.Checkpoint, Index: &child.Index, N: len(rec.Children), Payload: child.Payload}
	}
	return protocol.SnapshotResult{ID: rec.Checkpoint, Restored: true, Index: &child.Index, Branch: rec.ID, Payload: child.Payload}
}

// expire ends the timeline of a child's slot when its time is over.
func (s *Sandbox) expire(l LineRecord) {
	s.task(func() {
		if sleep(s.ctx, time.Until(l.Expires)) != nil {
			return
		}
		why := protocol.Errorf(protocol.CodeTimeout, "the child ran until its time was over, at %v", l.Expires.UTC().Format(time.RFC3339))
		err := s.insist(func() error { return s.endSlot(s.ctx, l.Branch, l.Index, why) })
		if err != nil && s.ctx.Err() == nil {
			s.log.Error("end a child at its timeout", "branch", l.Branch, "index", l.Index, "error", err)
		}
	})
}

// laterWaves loads the waiting children as earlier ones end.
func (s *Sandbox) laterWaves(rec BranchRecord) {
	if rec.MaxLive == 0 {
		return
	}
	for s.ctx.Err() == nil {
		changed := s.waiter(rec.ID)
		next, live, err := s.nextWaiting(rec.ID)
		if err != nil {
			s.log.Error("read waiting children", "branch", rec.ID, "error", err)
			return
		}
		if next == nil {
			return
		}
		if live >= rec.MaxLive || s.reserve(1) != nil {
			select {
			case <-changed:
			case <-s.ctx.Done():
			}
			continue
		}
		s.loadWaiting(rec, *next)
		s.unreserve(1)
	}
}

// nextWaiting finds the first waiting child and counts the live ones.
func (s *Sandbox) nextWaiting(id protocol.BranchID) (next *BranchChild, live int, err error) {
	err = s.view(func(tx Tx) error {
		op, ok, err := branches.get(tx, string(id))
		if err != nil || !ok {
			return err
		}
		for i := range op.Children {
			switch c := op.Children[i]; c.State {
			case ChildWaiting:
				if next == nil {
					next = &op.Children[i]
				}
			default:
				l, ok, err := lines.get(tx, string(c.Line))
				if err != nil || !ok || l.Timeline == "" {
					continue
				}
				if t, _, err := timelines.get(tx, string(l.Timeline)); err == nil && (t.State == StateLive || t.State == StateHibernated) {
					live++
				}
			}
		}
		return nil
	})
	return next, live, err
}

// loadWaiting loads one child of a later wave, or gives its slot the reason.
func (s *Sandbox) loadWaiting(rec BranchRecord, child BranchChild) {
	t, committed, err := s.startWaiting(&rec, child)
	if err != nil {
		if s.ctx.Err() != nil {
			return
		}
		why := protocol.Errorf(protocol.CodeChildLost, "the child could not be started: %v", err)
		if err := s.endSlot(s.ctx, rec.ID, child.Index, why); err != nil {
			s.log.Error("record a child that could not be started", "branch", rec.ID, "index", child.Index, "error", err)
		}
		return
	}
	s.thawChild(committed, t)
}

func (s *Sandbox) startWaiting(rec *BranchRecord, child BranchChild) (*timeline, BranchRecord, error) {
	cp, err := s.checkpoints.Get(s.ctx, rec.Checkpoint)
	if err != nil {
		return nil, *rec, err
	}
	if err := s.view(func(tx Tx) error { return s.parentLives(tx, rec.Parent) }); err != nil {
		return nil, *rec, err
	}
	c := s.newCopy(cp, child.Line)
	c.op = "branch"
	if err := s.commit("journal.intend", c.intend); err != nil {
		return nil, *rec, err
	}
	if err := s.loadCopy(s.ctx, c, 1, cp); err != nil {
		return nil, *rec, errors.Join(err, s.dropCopies(c))
	}
	var now BranchRecord
	var t *timeline
	err = s.commit("journal.wave", func(tx Tx) error {
		if err := s.parentLives(tx, rec.Parent); err != nil {
			return err
		}
		if now, err = branches.need(tx, string(rec.ID)); err != nil {
			return err
		}
		k := &now.Children[child.Index]
		if k.State != ChildWaiting {
			return fmt.Errorf("child %d no longer waits", child.Index)
		}
		k.State, k.Timeline, k.VM, k.Stream = ChildLoaded, c.timeline, c.vmID, c.stream
		line, err := lines.need(tx, string(child.Line))
		if err != nil {
			return err
		}
		line.Expires = now.expires()
		return errors.Join(branches.put(tx, string(rec.ID), now), c.become(tx, line))
	}, func() { t = s.enter(c, "") })
	if err != nil {
		return nil, *rec, errors.Join(err, s.dropCopies(c))
	}
	return t, now, nil
}

// parentLives refuses to start children of a parent that ended or stopped, or
// in a sandbox that ended.
func (s *Sandbox) parentLives(tx Tx, parent protocol.TimelineID) error {
	if parent == "" {
		rec, err := sandboxes.need(tx, string(s.id))
		if err == nil && rec.State == StateEnded {
			err = protocol.Errorf(protocol.CodeSandboxStopped, "the sandbox has ended")
		}
		return err
	}
	r, err := timelines.need(tx, string(parent))
	if err != nil {
		return err
	}
	if r.State == StateEnded || r.State == StateStopped {
		return protocol.Errorf(protocol.CodeSandboxStopped, "its parent is %s", r.State)
	}
	return nil
}
