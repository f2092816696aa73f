package simulation_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// atRest checks what must hold when nothing is left to do.
func (r *rules) atRest() {
	w, j := r.world, r.world.journal
	if w.running() == nil {
		w.fail("at rest without a daemon: %s", w.dump())
		return
	}
	for _, x := range w.wishes {
		if !isClosed(x.done) {
			w.fail("the operator's %s never ends: %s", x.name, w.dump())
		}
	}
	r.machinesAtRest()
	for key, s := range j.streams {
		if t := j.timelines[string(s.Owner)]; t.State != sandbox.StateLive && t.State != sandbox.StateHibernated {
			w.fail("stream record %s has no timeline (%s)", w.short(key), t.State)
		}
	}
	for id := range w.disk.temps {
		w.fail("capture %s is left behind", w.short(string(id)))
	}
	auto := 0
	for id, s := range w.disk.files {
		if s.lost {
			continue
		}
		if s.meta.Class == sandbox.ClassInternal && w.referrer(id) == "" {
			w.fail("internal checkpoint %s is needed by nothing", w.short(string(id)))
		}
		if s.meta.Class == sandbox.ClassAuto && w.referrer(id) == "" {
			auto++
		}
	}
	if auto > w.plan.spec.AutoKeep {
		w.fail("%d automatic checkpoints are kept, the limit is %d", auto, w.plan.spec.AutoKeep)
	}
	for key := range j.restores {
		w.fail("the record of restore %s is never removed", w.short(key))
	}
	for _, key := range sortedKeys(j.branches) {
		b := j.branches[key]
		if !slices.ContainsFunc(b.Children, func(c sandbox.BranchChild) bool { return c.State == sandbox.ChildWaiting }) {
			w.fail("the record of branch %s is never removed: %+v", w.short(key), b.Children)
		}
	}
	r.slotsAtRest()
	r.stateAtRest()
}

func (r *rules) machinesAtRest() {
	w, j := r.world, r.world.journal
	for _, v := range w.vms {
		t, ok := j.owner(v.id)
		if !ok {
			w.fail("%v is nobody's", v)
			continue
		}
		g := v.guest
		if v.mute {
			continue // nothing was asked of it, or it would be stopped
		}
		switch {
		case g.timeline != t.ID:
			w.fail("%v is %s and was never told", v, w.short(string(t.ID)))
		case v.paused || g.frozen || g.machine.State() != protocol.StateRunning:
			w.fail("%v is left %s, paused %v: %s", v, g.machine.State(), v.paused, w.dump())
		case v.link == nil || v.link.down || v.link.broken:
			w.fail("%v is left without a link: %s", v, w.dump())
		case g.kept.Epoch != r.epochs[g.kept.Stream] || g.kept.Stream != t.Stream:
			w.fail("%v writes %s at epoch %d, expected %d of %s", v, w.short(string(g.kept.Stream)), g.kept.Epoch, r.epochs[t.Stream], w.short(string(t.Stream)))
		}
		for i := range g.memory.threads {
			if c := &g.memory.threads[i]; c.busy && !c.cut && !r.mayWait(c) {
				w.fail("%v: %s (%s) is never answered: %s", v, c.call.kind, w.short(c.call.key.String()), w.dump())
			}
		}
	}
	for key, rec := range j.vms {
		if t, ok := j.owner(rec.ID); !ok || w.find(rec.ID) == nil {
			w.fail("record of machine %s is left (%s)", w.short(key), t.ID)
		}
	}
	for _, t := range j.timelines {
		if t.State == sandbox.StateLive && w.find(t.VM) == nil {
			w.fail("timeline %s is live without a machine: %s", w.short(string(t.ID)), w.dump())
		}
	}
}

// mayWait tells whether results are still to come.
func (r *rules) mayWait(t *thread) bool {
	if t.call.kind != protocol.CallResults {
		return false
	}
	j := r.world.journal
	for _, l := range j.lines {
		if l.Branch == t.call.branch {
			if _, there := j.results[fmt.Sprintf("%s/%06d", l.Branch, l.Index)]; !there {
				return true
			}
		}
	}
	return false
}

// slotsAtRest: each slot has a child, or a result, or nobody to collect it.
func (r *rules) slotsAtRest() {
	w, j := r.world, r.world.journal
	for _, key := range sortedKeys(j.lines) {
		l := j.lines[key]
		if l.Branch == "" || l.Detached {
			continue
		}
		if p, ok := j.timelines[string(l.Parent)]; ok && p.State == sandbox.StateEnded {
			if t := j.timelines[string(l.Timeline)]; l.Timeline != "" && t.State != sandbox.StateEnded {
				w.fail("timeline %s is %s, and its parent %s has ended", w.short(string(t.ID)), t.State, w.short(string(p.ID)))
			}
			continue
		}
		if _, there := j.results[fmt.Sprintf("%s/%06d", l.Branch, l.Index)]; there {
			continue
		}
		if t := j.timelines[string(l.Timeline)]; t.State == sandbox.StateLive || t.State == sandbox.StateHibernated {
			continue
		}
		if b, ok := j.branches[string(l.Branch)]; ok && b.Children[l.Index].State == sandbox.ChildWaiting {
			if p := j.timelines[string(l.Parent)]; l.Parent == "" || p.State == sandbox.StateLive || p.State == sandbox.StateHibernated {
				continue
			}
		}
		if j.sandbox.State == sandbox.StateEnded {
			continue
		}
		w.fail("slot %d of %s has neither child nor result: %s", l.Index, w.short(string(l.Branch)), w.dump())
	}
}

// stateAtRest: the sandbox is what its first line is.
func (r *rules) stateAtRest() {
	w, j := r.world, r.world.journal
	first := j.timelines[string(j.lines[string(j.sandbox.FirstLine)].Timeline)]
	want := first.State
	switch {
	case want == sandbox.StateLive:
		want = sandbox.StateRunning
	case want == "" && j.sandbox.State != sandbox.StateEnded: // its start did not succeed
		want = sandbox.StateStopped
	case want == "":
		want = sandbox.StateEnded
	}
	if j.sandbox.State != want {
		w.fail("the sandbox is %s, its first line %s", j.sandbox.State, first.State)
	}
}

// dump says who waits for what.
func (w *world) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n  sandbox %s; daemon %d, sandbox there %v", w.journal.sandbox.State, len(w.hosts), w.running() != nil)
	w.mu.Lock()
	for _, p := range w.parked {
		fmt.Fprintf(&b, "\n  host waits: %s %v", p.label, p.vm)
	}
	w.mu.Unlock()
	for _, v := range w.vms {
		g := v.guest
		fmt.Fprintf(&b, "\n  %v: timeline %s, %s, frozen %v, stopping %d, paused %v, mute %v, %s", v, g.timeline, g.machine.State(), g.frozen, g.stopping, v.paused, v.mute, g.machine.Hello().Timeline)
		if l := v.link; l != nil {
			fmt.Fprintf(&b, "; link hung %v sealed %v down %v ended %v broken %v, %d to host, %d to guest", l.hung, l.sealed, l.down, l.ended, l.broken, len(l.toHost), len(l.toGuest))
		}
		for i, t := range g.memory.threads {
			if t.busy {
				fmt.Fprintf(&b, "\n    caller %d waits: %s %v", i, t.call.kind, t.call.key)
			}
		}
	}
	for _, x := range w.wishes {
		if !isClosed(x.done) {
			fmt.Fprintf(&b, "\n  operator waits: %s", x.name)
		}
	}
	j := w.journal
	for _, key := range sortedKeys(j.timelines) {
		t := j.timelines[key]
		fmt.Fprintf(&b, "\n  timeline %s of line %s: %s, incarnation %d, %s", key, t.Line, t.State, t.Incarnation, t.VM)
	}
	for _, key := range sortedKeys(j.branches) {
		fmt.Fprintf(&b, "\n  branch %s: %+v", key, j.branches[key].Children)
	}
	return w.short(b.String())
}
