package simulation_test

import (
	"fmt"
	"slices"

	"github.com/ratoon-project/ratoon/guest/agent"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// memory is what the programs of a guest know. It is captured with them.
type memory struct {
	threads  []thread
	saved    []protocol.CheckpointID // that may be restored
	branches []handle
}

// thread is one caller.
type thread struct {
	busy bool // a call is pending
	cut  bool // its socket is broken: the worker died
	gone bool // its program has exited
	call pendingCall

	drained int // times it tried to finish at the end
}

type pendingCall struct {
	key      protocol.Key
	kind     protocol.CallKind
	durable  bool
	branch   protocol.BranchID // of results
	have     int
	madeIn   protocol.TimelineID
	hosts    int // daemons so far
	lostLink int // links lost so far
}

// handle is a branch as its parent knows it.
type handle struct {
	id   protocol.BranchID
	n    int
	have []int
	kept []int
}

func (m memory) copied() memory {
	m.threads, m.saved, m.branches = slices.Clone(m.threads), slices.Clone(m.saved), slices.Clone(m.branches)
	for i := range m.branches {
		h := &m.branches[i]
		h.have, h.kept = slices.Clone(h.have), slices.Clone(h.kept)
	}
	return m
}

// caller is a thread as the agent sees it.
type caller int

func (c caller) Watch() (int, uint64) { return 100 + int(c), 1 }

// step lets an idle thread do something.
func (g *guest) step(i int) {
	t := &g.memory.threads[i]
	if t.cut {
		t.cut, t.busy = false, false
		return
	}
	kind, args := g.choose()
	if kind == exit {
		g.exit(i)
		return
	}
	g.call(i, kind, args)
}

// exit is no call: the program ends.
const exit = protocol.CallKind("exit")

func (g *guest) exit(i int) {
	w := g.machine.Watched()
	if w == nil || w.PID != 100+i {
		return
	}
	g.memory.threads[i].gone = true
	watch := *w
	g.do(func(a *agent.Machine) []agent.Effect {
		return a.Exited(watch, protocol.ExitStatus{Code: 3}, []byte("oops"))
	})
}

func (g *guest) call(i int, kind protocol.CallKind, args any) {
	w := g.world
	body, err := wire.Marshal(args)
	if err != nil {
		panic(err)
	}
	t := &g.memory.threads[i]
	t.call = pendingCall{kind: kind, madeIn: g.timeline, hosts: len(w.hosts), lostLink: w.rules.lostLinks}
	switch a := args.(type) {
	case protocol.SnapshotArgs:
		t.call.durable = a.Durable
	case protocol.ResultsArgs:
		t.call.branch, t.call.have = a.Branch, len(a.Have)
	}
	var refusal *protocol.Error
	g.do(func(a *agent.Machine) []agent.Effect {
		key, effects, err := a.Open(kind, body, caller(i))
		if a == g.machine { // not a copy that repeats it
			t := &g.memory.threads[i]
			t.call.key, refusal = key, err
		}
		return effects
	})
	g.memory.threads[i].busy = refusal == nil
	w.happened("call", string(kind), g.vm, " ", g.memory.threads[i].call.key, fmt.Sprintf(" %+v", args))
}

// giveUp is the end of a program that waited.
func (g *guest) giveUp(i int) {
	t := &g.memory.threads[i]
	key := t.call.key
	t.busy = false
	g.do(func(a *agent.Machine) []agent.Effect { return a.Gone(key) })
}

var sizes = []int{1, 2, 2, 3}

// choose makes up the next call out of what is known here.
func (g *guest) choose() (protocol.CallKind, any) {
	w, m := g.world, &g.memory
	child := g.isChild()
	for {
		kind := pick(w, w.plan.mix)
		switch kind {
		case protocol.CallSnapshot:
			return kind, protocol.SnapshotArgs{Durable: w.chance(3)}
		case protocol.CallBranch:
			if child && (w.chance(2) || w.plan.flat) || len(m.branches) > 1 {
				continue
			}
			n := pick(w, sizes)
			a := protocol.BranchArgs{N: n}
			for j := range n {
				a.Payloads = append(a.Payloads, fmt.Appendf(nil, "for %d", j))
			}
			if w.chance(3) {
				a.MaxLive = 1 + w.rng.IntN(n)
			}
			if w.chance(3) {
				a.MinOK = 1 + w.rng.IntN(n)
			}
			if len(m.saved) > 0 && w.chance(3) {
				a.At = pick(w, m.saved)
			}
			if w.chance(8) {
				a.Timeout = int64(5e9)
			}
			return kind, a
		case protocol.CallRestore:
			if len(m.saved) == 0 {
				kind = protocol.CallSnapshot
				return kind, protocol.SnapshotArgs{}
			}
			return kind, protocol.RestoreArgs{ID: pick(w, m.saved), Payload: []byte("again"), DropPresent: w.chance(3), Detach: w.chance(4)}
		case protocol.CallFinish:
			if !child && !w.chance(10) {
				continue
			}
			return kind, protocol.FinishArgs{Result: []byte("done"), Keep: w.chance(2)}
		case exit:
			if !child {
				continue
			}
			return kind, nil
		case protocol.CallResults, protocol.CallCancel, protocol.CallDiscard, protocol.CallAdopt:
			if len(m.branches) == 0 {
				if w.chance(4) {
					return protocol.CallTree, struct{}{}
				}
				continue
			}
			h := &m.branches[w.rng.IntN(len(m.branches))]
			if a := h.call(w, kind); a != nil {
				return kind, a
			}
		case protocol.CallLLM:
			return kind, protocol.LLMArgs{Prompts: []string{"why"}}
		default:
			return kind, struct{}{}
		}
	}
}

func (h *handle) call(w *world, kind protocol.CallKind) any {
	i := w.rng.IntN(h.n)
	switch kind {
	case protocol.CallResults:
		if len(h.have) == h.n {
			return nil
		}
		a := protocol.ResultsArgs{Branch: h.id, Have: slices.Clone(h.have)}
		if w.chance(3) {
			a.Timeout = int64(2e9)
		}
		return a
	case protocol.CallCancel:
		return protocol.CancelArgs{Branch: h.id, Index: i}
	case protocol.CallDiscard:
		if !w.chance(3) {
			return nil
		}
		return protocol.DiscardArgs{Branch: h.id}
	default:
		switch {
		case len(h.kept) > 0 && !w.chance(8):
			i = pick(w, h.kept)
		case !w.chance(4):
			return nil
		}
		return protocol.AdoptArgs{Branch: h.id, Index: i, Payload: []byte("yours")}
	}
}

// isChild tells whether this timeline's line has a slot.
func (g *guest) isChild() bool {
	j := g.world.journal
	l, ok := j.lines[string(j.timelines[string(g.timeline)].Line)]
	return ok && l.Branch != ""
}

// answered gives a thread its outcome. What it says is checked and learned.
func (g *guest) answered(e agent.Answer) {
	w := g.world
	i := int(e.Caller.(caller))
	t := &g.memory.threads[i]
	o := e.Outcome
	switch {
	case t.cut:
		return // nobody listens
	case !t.busy || t.call.key != o.Key:
		if !w.rules.gaveUp[o.Key] {
			w.fail("%v: %s is answered, but pending is %s (%v)", g.vm, w.short(o.Key.String()), w.short(t.call.key.String()), t.busy)
		}
		return
	}
	t.busy = false
	w.happened("answer", string(t.call.kind), g.vm, " ", o.Key, " ", o.Error, len(o.Value))
	if o.Error != nil {
		w.rules.failedCall(g, t, o.Error)
		return
	}
	g.learn(t, o.Value)
}

func (g *guest) learn(t *thread, value []byte) {
	w := g.world
	switch t.call.kind {
	case protocol.CallSnapshot, protocol.CallRestore, protocol.CallFinish, protocol.CallAdopt:
		var r protocol.SnapshotResult
		g.read(value, &r)
		w.rules.told(g, r.ID, t.call.durable && !r.Restored)
		if r.Restored == (g.timeline == t.call.key.Timeline) {
			w.fail("%v: %s comes back with restored %v in timeline %s", g.vm, t.call.kind, r.Restored, w.short(string(g.timeline)))
		}
		if t.call.kind == protocol.CallSnapshot && !slices.Contains(g.memory.saved, r.ID) {
			g.memory.saved = append(g.memory.saved, r.ID)
		}
		w.rules.payload(g, r.Index != nil, r.Restored, r.Payload)
	case protocol.CallBranch:
		var r protocol.BranchResult
		g.read(value, &r)
		if (r.Index == nil) != (g.timeline == t.call.key.Timeline) {
			w.fail("%v: branch comes back with index %v in timeline %s", g.vm, r.Index, w.short(string(g.timeline)))
		}
		if r.Index == nil {
			w.rules.toldBranch(g, t.call.key, r)
			g.memory.branches = append(g.memory.branches, handle{id: r.ID, n: r.N})
		} else {
			w.rules.payload(g, true, true, r.Payload)
		}
	case protocol.CallResults:
		var r protocol.ResultsResult
		g.read(value, &r)
		for j := range g.memory.branches {
			if h := &g.memory.branches[j]; h.id == t.call.branch {
				for _, c := range r.Results {
					w.rules.toldResult(g, h, c)
				}
			}
		}
	case protocol.CallLLM:
		var r protocol.LLMResult
		g.read(value, &r)
	}
}

func (g *guest) read(b []byte, v any) {
	if err := wire.Unmarshal(b, v); err != nil {
		g.world.fail("%v: outcome %T: %v", g.vm, v, err)
	}
}
