package simulation_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// rules holds what the invariants need to know of the past.
type rules struct {
	world     *world
	lostLinks int
	unclear   int // journal writes that failed
	slow      int // faults after which things take longer
	late      int // times that time passed while something was under way
	gaveUp    map[protocol.Key]bool
	branched  map[protocol.Key]stamp                 // when a branch was committed, by its parent's call
	received  map[protocol.Key]int                   // by which daemon
	ranAs     map[protocol.TimelineID]map[uint64]int // last step of an incarnation's user code
	replaced  map[protocol.TimelineID][]protocol.TimelineID
	inputs    map[protocol.TimelineID][]protocol.ExecOffsets // as last told

	mu      *sync.Mutex // guards what follows
	epochs  map[protocol.StreamID]uint64
	freezes map[protocol.TimelineID]protocol.Freeze
	begun   map[protocol.Key]protocol.Freeze // operations that were begun, by the call
}

// stamp is a moment, and how many faults there had been that slow things down.
type stamp struct {
	at   time.Time
	slow int
}

// patience is less than a daemon waits for a silent guest.
const patience = 55 * time.Second

func newRules(w *world) rules {
	return rules{world: w, gaveUp: map[protocol.Key]bool{}, ranAs: map[protocol.TimelineID]map[uint64]int{},
		replaced: map[protocol.TimelineID][]protocol.TimelineID{}, mu: new(sync.Mutex),
		inputs:   map[protocol.TimelineID][]protocol.ExecOffsets{},
		branched: map[protocol.Key]stamp{}, received: map[protocol.Key]int{}, begun: map[protocol.Key]protocol.Freeze{},
		epochs: map[protocol.StreamID]uint64{}, freezes: map[protocol.TimelineID]protocol.Freeze{}}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// check is called after every step.
func (r *rules) check() {
	w := r.world
	if n, limit := len(w.vms), w.plan.spec.Limits.Live+1; n > limit {
		w.fail("%d machines exist, more than the limit and one for a restore", n)
	}
	lines := map[protocol.LineID]*vm{}
	for _, v := range w.vms {
		if !v.runs() {
			continue
		}
		g := v.guest
		t, ok := w.journal.timelines[string(g.timeline)]
		switch {
		case !ok:
			w.fail("%v runs user code as %s, which no commit has made", v, w.short(string(g.timeline)))
			return
		case t.VM != v.id || t.Incarnation != g.incarnation:
			w.fail("%v runs user code as incarnation %d of %s, but that is incarnation %d in %s", v, g.incarnation, w.short(string(g.timeline)), t.Incarnation, w.short(string(t.VM)))
			return
		case t.State == sandbox.StateHibernated:
			w.fail("%v runs user code of a hibernated timeline", v)
		case g.captured:
			w.fail("%v runs user code between its capture and thaw", v)
		}
		if other := lines[t.Line]; other != nil {
			w.fail("%v and %v run user code of one line", other, v)
		}
		lines[t.Line] = v
		for _, old := range r.replaced[g.timeline] {
			for _, o := range w.vms {
				if o.runs() && o.guest.timeline == old {
					w.fail("%v runs, and %v, which its restore has ended, runs too", v, o)
				}
			}
		}
		if r.ranAs[g.timeline] == nil {
			r.ranAs[g.timeline] = map[uint64]int{}
		}
		r.ranAs[g.timeline][g.incarnation] = w.steps
		for inc, at := range r.ranAs[g.timeline] {
			if inc != g.incarnation && at > v.born {
				w.fail("%v runs user code of %s, whose incarnation %d ran after the capture", v, w.short(string(g.timeline)), inc)
			}
		}
	}
}

// loaded is called when a machine is about to exist.
func (r *rules) loaded(q sandbox.LoadRequest) {
	w := r.world
	rec, ok := w.journal.vms[string(q.VM)]
	if !ok {
		w.fail("machine %s is loaded before the journal knows of it", q.VM)
	}
	if rec.Timeline == "" {
		return
	}
	t := w.journal.timelines[string(rec.Timeline)]
	if t.State != sandbox.StateHibernated || t.Hibernated.Checkpoint != q.Checkpoint {
		w.fail("checkpoint %s is loaded as %s, which is %s", w.short(string(q.Checkpoint)), w.short(string(t.ID)), t.State)
	}
	if old := w.find(t.VM); old != nil {
		w.fail("a second incarnation of %s is loaded while %v exists", w.short(string(t.ID)), old)
	}
}

// spoken is called when a daemon un-pauses or speaks to a guest.
func (r *rules) spoken(d *daemon) {
	w := r.world
	if !d.sweeping || isClosed(d.started) {
		return
	}
	d.sweeping = false
	for _, v := range w.vms {
		if _, ok := w.journal.owner(v.id); !ok && v.host != d {
			w.fail("recovery speaks to guests, and %v is not swept", v)
		}
	}
	for _, id := range d.deadAtBoot {
		if t := w.journal.timelines[string(id)]; t.State == sandbox.StateLive {
			w.fail("recovery speaks to guests, and %s without a machine is not stopped", w.short(string(id)))
		}
	}
}

// killing is called before a daemon kills a machine: none that answers, while
// the journal says that its timeline lives.
func (r *rules) killing(d *daemon, v *vm) {
	if t, ok := r.world.journal.owner(v.id); ok && !v.dead && !d.closing && !v.mute && !v.excused && v.guest.machine.State() != protocol.StateLost && r.late == 0 {
		r.world.fail("%v is killed, while %s lives", v, r.world.short(string(t.ID)))
	}
}

func (r *rules) pausing(v *vm) {
	if s := v.guest.machine.State(); s != protocol.StateQuiesced && s != protocol.StateLost || !v.guest.frozen {
		r.world.fail("%v is paused while %s", v, s)
	}
	if v.link == nil || !v.link.ended {
		r.world.fail("%v is paused before its link was read to the end", v)
	}
}

func (r *rules) resuming(v *vm) {
	if _, ok := r.world.journal.owner(v.id); !ok {
		r.world.fail("%v is un-paused, which is no live timeline's machine", v)
	}
}

// sent is called in the coordinator's goroutines.
func (r *rules) sent(v *vm, m protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.world
	newer := func(stream protocol.StreamID, epoch uint64) {
		if epoch <= r.epochs[stream] {
			w.fail("%s to %v carries epoch %d, after %d", m.Type(), v, epoch, r.epochs[stream])
		}
		r.epochs[stream] = epoch
	}
	owner, _ := w.journal.owner(v.id)
	switch m := m.(type) {
	case *protocol.Thaw:
		newer(m.Stream, m.Epoch)
		if owner.ID != m.Timeline || owner.Incarnation != m.Incarnation {
			w.fail("%v is thawed as %s, which it is not", v, w.short(string(m.Timeline)))
		}
	case *protocol.Attach:
		newer(m.Stream, m.Epoch)
		if owner.ID != m.Timeline {
			w.fail("%v is attached as %s, which it is not", v, w.short(string(m.Timeline)))
		}
	case *protocol.Prepare:
		if m.Freeze <= r.freezes[owner.ID] {
			w.fail("prepare carries freeze %d of %s, after %d", m.Freeze, w.short(string(owner.ID)), r.freezes[owner.ID])
		}
		r.freezes[owner.ID] = m.Freeze
		if m.Key.IsZero() {
			return
		}
		if _, twice := r.begun[m.Key]; twice {
			w.fail("the operation of %s is run twice", w.short(m.Key.String()))
		}
		r.begun[m.Key] = m.Freeze
	}
}

// consumed is what a guest tells of its programs, each time something else.
func (r *rules) consumed(t protocol.TimelineID) []protocol.ExecOffsets {
	r.inputs[t] = []protocol.ExecOffsets{{ID: "ex-program", Stdin: uint64(r.world.steps)}}
	return r.inputs[t]
}

// goesOn is called when a copy becomes another timeline: it must be told what
// the one that it replaces, if any, had consumed.
func (r *rules) goesOn(v *vm, t *protocol.Thaw) {
	if want := r.world.journal.restores[string(t.Timeline)].Execs; !slices.Equal(t.Execs, want) {
		r.world.fail("%v is told that %v was consumed, and not %v", v, t.Execs, want)
	}
}

// removed is called before a checkpoint is removed.
func (r *rules) removed(id protocol.CheckpointID) {
	if by := r.world.referrer(id); by != "" {
		r.world.fail("checkpoint %s is removed, and needed by %s", r.world.short(string(id)), by)
	}
}

// referrer is what needs a checkpoint, empty if nothing does.
func (w *world) referrer(id protocol.CheckpointID) string {
	j := w.journal
	for _, b := range j.branches {
		if b.Checkpoint == id {
			return "branch " + string(b.ID)
		}
	}
	for _, x := range j.results {
		if x.Result.Checkpoint == id {
			return fmt.Sprintf("result %d of %s", x.Result.Index, x.Branch)
		}
	}
	for _, t := range j.timelines {
		if t.Hibernated != nil && t.Hibernated.Checkpoint == id {
			return "hibernated " + string(t.ID)
		}
	}
	for _, x := range j.restores {
		if x.Target == id || x.Kept == id {
			return "restore of " + string(x.Line)
		}
	}
	return ""
}

// committed is called with each transaction that reached the disk.
func (r *rules) committed(t *transaction) {
	var began []protocol.TimelineID
	for key, b := range t.writes["restore"] {
		if b == nil || t.journal.tables["restore"][key] != nil {
			continue
		}
		var x sandbox.RestoreRecord
		decode(b, &x)
		began = append(began, x.New)
		r.publishedAs("the kept present of a restore", x.Kept)
		var old sandbox.TimelineRecord
		decode(t.journal.tables["timeline"][string(x.Old)], &old)
		if want := r.inputs[x.Old]; old.State == sandbox.StateLive && !slices.Equal(x.Execs, want) {
			r.world.fail("a restore records that %s, which it replaces, has consumed %v; it has told %v", r.world.short(string(x.Old)), x.Execs, want)
		}
	}
	for key, b := range t.writes["timeline"] {
		var was, is sandbox.TimelineRecord
		if old := t.journal.tables["timeline"][key]; old != nil {
			decode(old, &was)
		}
		decode(b, &is)
		r.changed(was, is)
		if is.State == sandbox.StateEnded && was.State != sandbox.StateEnded {
			for _, id := range began {
				r.replaced[id] = append(r.replaced[id], is.ID)
			}
		}
	}
	nodes := map[string]string{}
	for _, l := range r.world.journal.lines {
		nodes[l.Node] = string(l.ID)
	}
	for key, b := range t.writes["line"] {
		var l sandbox.LineRecord
		decode(b, &l)
		if other, taken := nodes[l.Node]; taken && other != key {
			r.world.fail("node %s is given twice", l.Node)
		}
		nodes[l.Node] = key
		if was, ok := r.world.journal.lines[key]; ok && (was.Branch != l.Branch || was.Index != l.Index || was.Parent != l.Parent || was.Detached && !l.Detached) {
			r.world.fail("line %s changes its slot: %+v, %+v", r.world.short(key), was, l)
		}
	}
	for key, b := range t.writes["result"] {
		r.result(key, t.journal.tables["result"][key], b)
	}
	for key, b := range t.writes["branch"] {
		if b != nil && t.journal.tables["branch"][key] == nil {
			var x sandbox.BranchRecord
			decode(b, &x)
			r.publishedAs("the checkpoint of a branch", x.Checkpoint)
			r.branched[x.Key] = stamp{time.Now(), r.slow}
		}
	}
}

var mayFollow = map[sandbox.State][]sandbox.State{
	"":                      {sandbox.StateLive},
	sandbox.StateLive:       {sandbox.StateLive, sandbox.StateHibernated, sandbox.StateStopped, sandbox.StateEnded},
	sandbox.StateHibernated: {sandbox.StateHibernated, sandbox.StateLive, sandbox.StateStopped, sandbox.StateEnded},
	sandbox.StateStopped:    {sandbox.StateStopped, sandbox.StateEnded},
	sandbox.StateEnded:      {sandbox.StateEnded},
}

func (r *rules) changed(was, is sandbox.TimelineRecord) {
	w := r.world
	if !slices.Contains(mayFollow[was.State], is.State) {
		w.fail("timeline %s goes from %q to %q", w.short(string(is.ID)), was.State, is.State)
	}
	if is.Freezes < was.Freezes || is.Epochs < was.Epochs || is.Incarnation < was.Incarnation {
		w.fail("numbers of timeline %s go back: %+v, %+v", w.short(string(is.ID)), was, is)
	}
	if was.State == sandbox.StateHibernated && is.State == sandbox.StateLive && is.Incarnation == was.Incarnation {
		w.fail("timeline %s is woken without a new incarnation", w.short(string(is.ID)))
	}
	if (is.State == sandbox.StateHibernated) != (is.Hibernated != nil) {
		w.fail("timeline %s is %s with %v", w.short(string(is.ID)), is.State, is.Hibernated)
	}
	if is.Hibernated != nil {
		r.publishedAs("the checkpoint of a hibernated timeline", is.Hibernated.Checkpoint)
	}
}

func (r *rules) publishedAs(what string, id protocol.CheckpointID) {
	if id != "" && r.world.disk.files[id] == nil {
		r.world.fail("%s is %s, which is not published", what, r.world.short(string(id)))
	}
}

func (r *rules) result(key string, old, b []byte) {
	w := r.world
	var was, is sandbox.ResultRecord
	if b != nil {
		decode(b, &is)
		r.publishedAs("the kept end of a child", is.Result.Checkpoint)
	}
	if old == nil {
		return
	}
	decode(old, &was)
	if b == nil {
		if p := w.journal.timelines[string(was.Parent)]; was.Parent == "" || p.State == sandbox.StateLive && !r.endsNow(was.Parent) {
			w.fail("result %s is removed, and its parent lives", w.short(key))
		}
		return
	}
	same := fmt.Sprint(was.Result.Error) == fmt.Sprint(is.Result.Error) && (string(was.Value) == string(is.Value) || is.Collected) &&
		(was.Result.Checkpoint == is.Result.Checkpoint || is.Collected && is.Result.Checkpoint == "")
	if !same {
		w.fail("slot %s gets a second result: %+v, %+v", w.short(key), was, is)
	}
}

func (r *rules) endsNow(id protocol.TimelineID) bool {
	b := r.world.journal.applying.writes["timeline"][string(id)]
	if b == nil {
		return false
	}
	var t sandbox.TimelineRecord
	decode(b, &t)
	return t.State == sandbox.StateEnded
}

// told is called when a program learns of a checkpoint.
func (r *rules) told(g *guest, id protocol.CheckpointID, durable bool) {
	w := r.world
	s := w.disk.published(id)
	if s == nil {
		// A lost one was published before the crash.
		if w.disk.files[id] == nil {
			w.fail("%v is told of checkpoint %s, which is not published", g.vm, w.short(string(id)))
		}
		return
	}
	if durable && !s.meta.Durable {
		w.fail("%v is told that checkpoint %s is durable, which it is not", g.vm, w.short(string(id)))
	}
}

func (r *rules) toldBranch(g *guest, key protocol.Key, b protocol.BranchResult) {
	w := r.world
	if s, ok := r.branched[key]; !ok {
		w.fail("%v is told of branch %s, which is not committed", g.vm, w.short(string(b.ID)))
	} else if waited := time.Since(s.at); waited > patience && s.slow == r.slow {
		w.fail("%v is told of its branch %v after the commit", g.vm, waited)
	}
	r.told(g, b.Checkpoint, false)
	n := 0
	for _, l := range w.journal.lines {
		if l.Branch == b.ID {
			n++
		}
	}
	for _, x := range w.journal.results {
		if x.Branch == b.ID && !slices.ContainsFunc(slices.Collect(maps.Values(w.journal.lines)), func(l sandbox.LineRecord) bool {
			return l.Branch == b.ID && l.Index == x.Result.Index
		}) {
			n++
		}
	}
	if n != b.N {
		w.fail("%v is told of a branch of %d, %d slots of which are recorded", g.vm, b.N, n)
	}
}

func (r *rules) toldResult(g *guest, h *handle, c protocol.ChildResult) {
	w := r.world
	if !slices.Contains(h.have, c.Index) {
		h.have = append(h.have, c.Index)
	}
	if c.Checkpoint != "" {
		r.told(g, c.Checkpoint, false)
		h.kept = append(h.kept, c.Index)
	}
	if c.Error == nil && len(c.Result) == 0 {
		if x := w.journal.results[fmt.Sprintf("%s/%06d", h.id, c.Index)]; !x.Collected {
			w.fail("%v is told an empty result of child %d", g.vm, c.Index)
		}
	}
}

// payload checks what comes with a timeline.
func (r *rules) payload(g *guest, child, restored bool, b []byte) {
	ok := len(b) == 0
	switch {
	case child:
		ok = strings.HasPrefix(string(b), "for ")
	case restored:
		ok = slices.Contains([]string{"again", "yours", "op"}, string(b))
	}
	if !ok {
		r.world.fail("%v comes up with payload %q (child %v, restored %v)", g.vm, b, child, restored)
	}
}

var (
	// Calls that take part in no capture may be failed by these alone.
	bystanderCodes = []protocol.Code{protocol.CodeInterruptedByFork, protocol.CodeHostRestarted, protocol.CodeOverBudget, protocol.CodeModelFailed, protocol.CodeNoModel,
		protocol.CodeWrongTimeline, protocol.CodeNotFound, protocol.CodeBusy}
	bystanders = []protocol.CallKind{protocol.CallResults, protocol.CallLLM, protocol.CallTree, protocol.CallWhoami, protocol.CallBudget, protocol.CallSync, protocol.CallCancel, protocol.CallDiscard}
	// Without faults a call may be refused, but does not fail.
	refusals = []protocol.Code{protocol.CodeInterruptedByFork, protocol.CodeWrongTimeline, protocol.CodeNotFound, protocol.CodeNotKept, protocol.CodeOverBudget,
		protocol.CodeCancelled, protocol.CodeUnknownCheckpoint, protocol.CodeSandboxStopped, protocol.CodeBranchFailed}
)

func (r *rules) failedCall(g *guest, t *thread, err *protocol.Error) {
	w := r.world
	code := err.Code
	same := g.timeline == t.call.key.Timeline
	restarted := len(w.hosts) > t.call.hosts || r.lostLinks > t.call.lostLink
	switch {
	case code == protocol.CodeInterruptedByFork && same:
		w.fail("%v: %s is interrupted by a fork, in its own timeline", g.vm, t.call.kind)
	case code == protocol.CodeInterruptedByFork && g.vm.caller == t.call.key:
		w.fail("%v: %s made the checkpoint, and is interrupted in its copy", g.vm, t.call.kind)
	case code == protocol.CodeInterruptedByFork:
	case code == protocol.CodeHostRestarted && w.host != nil && r.received[t.call.key] == w.host.number+1:
		w.fail("%v: %s is told of a restart by the daemon that took it", g.vm, t.call.kind)
	case code == protocol.CodeHostRestarted && !restarted:
		w.fail("%v: %s is told of a restart that was not", g.vm, t.call.kind)
	case code == protocol.CodePrepareFailed && w.plan.interrupts():
	case w.faults == w.plan.faults && !slices.Contains(refusals, code):
		w.fail("%v: %s fails without a fault: %s %s", g.vm, t.call.kind, code, err.Message)
	case slices.Contains(bystanders, t.call.kind) && !slices.Contains(bystanderCodes, code) && r.unclear == 0:
		w.fail("%v: %s is failed by what it has no part in: %s %s", g.vm, t.call.kind, code, err.Message)
	}
}
