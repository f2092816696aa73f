package simulation_test

import (
	"errors"
	"slices"
	"time"

	"github.com/ratoon-project/ratoon/guest/agent"
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

// guest is what runs in a VM: PID 1, the worker's machine, and programs.
type guest struct {
	world *world
	vm    *vm

	machine *agent.Machine
	boot    agent.MachineOptions // of this worker
	log     []event              // all since: a copy of the machine is made by repeating them
	kept    keep.Record          // by PID 1

	frozen   bool            // user code is frozen
	captured bool            // since the last thaw
	stopping protocol.Freeze // the Stop under way
	hurried  bool
	acked    protocol.Freeze // the newest position that the host acknowledged
	armed    protocol.Freeze // the deadline that runs, 0 if none
	due      time.Time
	// What the identity fix has made of this machine.
	timeline    protocol.TimelineID
	incarnation uint64

	memory memory
}

// event is one method of the machine.
type event func(*agent.Machine) []agent.Effect

// image is a captured guest.
type image struct {
	boot        agent.MachineOptions
	log         []event
	kept        keep.Record
	timeline    protocol.TimelineID
	incarnation uint64
	memory      memory
}

func (g *guest) image() *image {
	if g.stopping != 0 || !g.frozen {
		g.world.fail("%v is captured while user code runs", g.vm)
	}
	return &image{g.boot, slices.Clip(g.log), g.kept, g.timeline, g.incarnation, g.memory.copied()}
}

// load makes a copy of the captured guest.
func (i *image) load(v *vm) *guest {
	g := &guest{world: v.world, vm: v, boot: i.boot, log: slices.Clip(i.log), kept: i.kept, frozen: true,
		timeline: i.timeline, incarnation: i.incarnation, memory: i.memory.copied()}
	g.machine = agent.NewMachine(i.boot)
	for _, e := range i.log {
		e(g.machine)
	}
	return g
}

// bootTemplate is a guest that no program runs in yet, at its first freeze.
func bootTemplate(w *world) *image {
	v := &vm{world: w}
	g := &guest{world: w, vm: v, boot: agent.MachineOptions{Release: "simulated", Start: 1}}
	v.guest = g
	g.machine = agent.NewMachine(g.boot)
	g.do((*agent.Machine).LinkUp)
	g.receive(&protocol.Attach{Timeline: "tl-template", Stream: "st-template", Epoch: 1})
	g.receive(&protocol.Prepare{Freeze: 1})
	g.stopped(nil)
	g.receive(&protocol.AckPosition{Freeze: 1})
	g.memory.threads = make([]thread, w.plan.threads)
	return g.image()
}

func (g *guest) do(e event) {
	g.log = append(g.log, e)
	g.perform(e(g.machine))
}

func (g *guest) receive(m protocol.Message) {
	if a, ok := m.(*protocol.AckPosition); ok {
		g.acked = a.Freeze
	}
	g.do(func(a *agent.Machine) []agent.Effect { return a.Receive(m) })
}

func (g *guest) linkUp()   { g.do((*agent.Machine).LinkUp) }
func (g *guest) linkDown() { g.do((*agent.Machine).LinkDown) }

// stopped ends the Stop under way.
func (g *guest) stopped(err error) {
	f := g.stopping
	if g.hurried && err == nil && g.world.chance(2) {
		err = errors.New("cancelled")
	}
	g.stopping, g.hurried = 0, false
	g.frozen = err == nil
	g.do(func(a *agent.Machine) []agent.Effect {
		return a.Stopped(f, protocol.Position{Stream: g.kept.Stream}, err)
	})
}

// deadline is called at any time after it was due.
func (g *guest) deadline() {
	f := g.armed
	g.armed = 0
	g.do(func(a *agent.Machine) []agent.Effect { return a.Deadline(f) })
}

// perform carries out effects as agent.Agent does.
func (g *guest) perform(effects []agent.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case agent.Keep:
			g.kept = e.Record
		case agent.Stop:
			g.stopping, g.hurried = e.Freeze, false
		case agent.Cancel:
			g.hurried = true
		case agent.Resume:
			g.frozen = false
		case agent.Arm:
			g.armed, g.due = e.Freeze, time.Now().Add(protocol.PrepareDeadline)
		case agent.Disarm:
			g.armed = 0
		case agent.Send:
			if q, ok := e.Message.(*protocol.Quiesced); ok {
				if q.Freeze != g.acked {
					g.world.fail("%v is quiesced for freeze %d, and the host has acknowledged the position of %d", g.vm, q.Freeze, g.acked)
				}
				q.Execs = g.world.rules.consumed(g.timeline)
			}
			if g.vm.link != nil {
				g.vm.link.write(e.Message)
			}
		case agent.End:
			if g.vm.link != nil {
				g.vm.link.seal()
			}
		case agent.Fix:
			g.fix(e.Thaw)
		case agent.Deliver: // nothing is printed here
			g.do(func(a *agent.Machine) []agent.Effect { return a.Delivered(e.Key) })
		case agent.Answer:
			g.answered(e)
		}
	}
}

// fix gives the machine its identity.
func (g *guest) fix(t *protocol.Thaw) {
	if !g.frozen {
		g.world.fail("%v: identity is set while user code runs", g.vm)
	}
	if g.timeline != t.Timeline {
		g.world.rules.goesOn(g.vm, t)
	}
	g.timeline, g.incarnation, g.captured = t.Timeline, t.Incarnation, false
	g.do(func(a *agent.Machine) []agent.Effect { return a.Fixed(t) })
}

// workerDies replaces the agent's worker by a new one. What it was asked is
// forgotten, and its callers are told.
func (g *guest) workerDies() {
	if g.vm.link != nil {
		g.vm.link.toHost, g.vm.link.toGuest = nil, nil
	}
	lost := g.frozen
	g.boot = agent.MachineOptions{Release: "simulated", Start: g.boot.Start + 1, Record: g.kept, Lost: lost}
	g.machine, g.log = agent.NewMachine(g.boot), nil
	g.stopping, g.hurried, g.armed = 0, false, 0
	for i := range g.memory.threads {
		t := &g.memory.threads[i]
		t.cut = t.cut || t.busy // told when it runs
	}
	if l := g.vm.link; l != nil && !l.down {
		l.down = true
		l.mu.Lock()
		l.over(false)
		l.mu.Unlock()
	}
}

// runs tells whether user code runs.
func (v *vm) runs() bool { return !v.dead && !v.paused && !v.guest.frozen }
