// Package sandbox coordinates one sandbox: a tree of timelines, each a running
// virtual machine, and the operations that fork it.
//
//	sb, err := sandbox.Start(ctx, deps, id, sandbox.Spec{Template: template, MemoryBytes: 256 << 20})
//	...
//	err = sb.Snapshot(ctx, "", sandbox.SnapshotOptions{Label: "clean"})
//	err = sb.End(ctx, nil)
//
// Most operations are not asked for by the owner but by the programs in the
// guests: each arrives as a protocol.Call on a timeline's link and is answered
// there. The rules of every operation - what is written when, what is killed,
// un-paused and thawed, and what a restarted daemon does - are those of
// docs/FORK_PROTOCOL.md; the files here follow its sections: settle.go (3),
// snapshot.go (4), move.go (5), finish.go (6), branch.go (7), restore.go (8),
// commit.go and recover.go (9).
//
// # Layers
//
// The package does no I/O of its own. VMs, checkpoints, the journal, model
// calls and budgets come in through the interfaces of ports.go, so that the
// same code runs on real parts, in the simulation and in a long-lived daemon.
//
// # Concurrency
//
// A Sandbox is safe for concurrent use. Each timeline has one operation at a
// time (its turn); an operation that ends other timelines takes their turns
// too, always from ancestor to descendant. Sandbox.mu guards the maps of
// running timelines and is never held across I/O.
//
// # Failure
//
// An operation either reports an error and leaves every timeline as it was, or
// has committed and is carried to its end, by this process or the next one.
// The one exception is the death of a VM: its timeline is stopped, typed, and
// its checkpoints can be restored.
package sandbox
