package simulation_test

import (
	"math/rand/v2"
	"slices"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// plan is what a seed decides before the first step.
type plan struct {
	seed     uint64
	id       protocol.SandboxID
	spec     sandbox.Spec
	resident bool // VMs outlive the daemon: root mode
	threads  int  // callers in a timeline
	calls    int  // of guests, in all
	wishes   int  // of operators
	operator bool // there are some
	faults   int
	mix      []protocol.CallKind
	kinds    []string // of faults beside those of calls
	often    int      // a fault every so many steps, about
	drain    bool     // children finish at the end
	flat     bool     // children do not branch
	target   string   // step at which faults are likely; empty: anywhere
	before   string   // step at which a call's fault leads to the target
}

// Mixes of calls; what stands there twice is called twice as often.
var mixes = [][]protocol.CallKind{
	{protocol.CallSnapshot, protocol.CallSnapshot, protocol.CallLLM},
	{protocol.CallSnapshot, protocol.CallRestore, protocol.CallRestore, protocol.CallLLM},
	{protocol.CallBranch, protocol.CallBranch, protocol.CallResults, protocol.CallFinish, protocol.CallCancel, exit},
	{protocol.CallBranch, protocol.CallBranch, protocol.CallFinish, protocol.CallFinish, protocol.CallResults, protocol.CallResults, protocol.CallAdopt, protocol.CallAdopt, protocol.CallDiscard},
	{protocol.CallSnapshot, protocol.CallBranch, protocol.CallRestore, protocol.CallFinish, protocol.CallResults},
	{protocol.CallSnapshot, protocol.CallBranch, protocol.CallRestore, protocol.CallFinish, protocol.CallAdopt, protocol.CallResults,
		protocol.CallCancel, protocol.CallDiscard, protocol.CallLLM, protocol.CallTree, protocol.CallWhoami, protocol.CallBudget, protocol.CallSync, exit},
}

// interrupts tells whether operations may cut others short.
func (p plan) interrupts() bool {
	return p.operator || slices.ContainsFunc(p.mix, func(k protocol.CallKind) bool {
		return slices.Contains([]protocol.CallKind{protocol.CallRestore, protocol.CallAdopt, protocol.CallFinish, protocol.CallCancel, exit}, k)
	})
}

var (
	// Steps that only a fault at another leads to.
	leadsTo = map[string]string{"journal.hibernated": "load", "journal.drop": "load", "journal.confirm": "journal.reserve", "journal.stopped": "un-pause"}
	moving  = []string{"journal.move", "journal.moved", "journal.wake", "journal.hibernated"}
)

// mixFor is a mix of calls that leads to a step.
func mixFor(target string, standard []protocol.CallKind) []protocol.CallKind {
	switch target {
	case "set-class", "journal.collected", "journal.discard":
		return []protocol.CallKind{protocol.CallBranch, protocol.CallFinish, protocol.CallFinish, protocol.CallResults, protocol.CallResults, protocol.CallAdopt, protocol.CallDiscard}
	case "journal.wave", "journal.cancel", "journal.cancelled", "journal.exited", "journal.finish", "to-host.caller-exited":
		return mixes[2]
	case "journal.restore", "journal.restored", "to-vm.abort", "to-host.prepare-failed":
		return mixes[1]
	case "durable", "journal.move", "journal.moved", "journal.wake", "journal.hibernated":
		return mixes[0]
	}
	return standard
}

func newPlan(seed uint64) plan {
	rng := rand.New(rand.NewPCG(seed, 0x706c616e))
	p := plan{seed: seed, id: "sb-aaaaaaaaaaaaaaaa", resident: rng.IntN(3) > 0, threads: 1 + rng.IntN(3), calls: 1 + rng.IntN(7),
		faults: []int{0, 1, 1, 1, 2, 2, 3, 5}[rng.IntN(8)], mix: mixes[rng.IntN(len(mixes))], often: 10 + rng.IntN(60), drain: rng.IntN(2) == 0}
	if rng.IntN(3) == 0 {
		p.wishes, p.operator = 1+rng.IntN(3), true
	}
	p.spec = sandbox.Spec{Template: "cp-aaaaaaaaaaaaaaaa", MemoryBytes: 1 << 40, AutoKeep: 1 + rng.IntN(3),
		Limits: sandbox.Limits{Live: 3 + rng.IntN(4), Depth: 2 + rng.IntN(3)}}
	if rng.IntN(3) == 0 {
		// A new base pays at the second capture.
		p.spec.MemoryBytes = captureBytes
	}
	kinds := []string{"kill", "kill", "kill", "call", "call", "call", "vm-death", "link-loss", "duplicate", "late", "worker-death", "crash", "mute", "close", "freeze-fails", "stale", "stale"}
	if rng.IntN(2) == 0 {
		// All of the same two kinds.
		kinds = []string{kinds[rng.IntN(len(kinds))], kinds[rng.IntN(len(kinds))]}
	}
	p.kinds = kinds
	if rng.IntN(3) == 0 {
		p.target, p.faults = labels[rng.IntN(len(labels))], max(p.faults, 1)
		if p.before = leadsTo[p.target]; p.before != "" {
			p.faults = max(p.faults, 2)
		}
		p.mix, p.calls = mixFor(p.target, p.mix), p.calls+3
		if slices.Contains([]string{"set-class", "journal.collected", "journal.discard"}, p.target) {
			p.threads, p.calls, p.flat = 1, 14, true
		}
		if slices.Contains(moving, p.target) {
			p.spec.MemoryBytes = captureBytes
		}
	}
	return p
}
