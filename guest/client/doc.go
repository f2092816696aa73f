// Package client lets a Go program in a guest checkpoint, restore and branch
// the machine it runs in.
//
//	c := client.New(client.Options{})
//	cp, err := c.Snapshot(ctx, client.SnapshotOptions{Label: "before rm"})
//	if cp.Restored {
//		... // came back: cp.Payload is what the restorer passed
//	}
//	b, err := c.Branch(ctx, client.BranchOptions{N: 4})
//	if b.Index != nil { // in a child
//		return c.Finish(ctx, client.FinishOptions{Result: map[string]any{"score": *b.Index}})
//	}
//	for r, err := range b.AsCompleted(ctx) { ... }
//
// Snapshot returns once now and once more in every timeline restored from it,
// like setjmp; Branch returns in the parent and in each child, like fork.
//
// A Client is safe for concurrent use: each call is a connection of its own.
// When its context ends the call is given up and the host is told; what it had
// begun may still happen. Calls return errors whose chain has a
// *protocol.Error; match with errors.AsType or protocol.CodeOf. A call that
// is pending when the agent is restarted fails with CodeAgentRestarted, one
// that is pending while the machine is copied fails in the copy with
// CodeInterruptedByFork unless it is the call that made the copy.
//
// # Random numbers
//
// A copy of a machine is a copy of every generator in it. crypto/rand is right
// in every copy, since the kernel's generator is reseeded before any user
// instruction runs. The functions of math/rand and math/rand/v2 that use the
// runtime's generator cannot be reseeded: all children draw the same numbers.
// Use Client.Rand, which is reseeded before a pending call of this client
// returns and when an event of a thaw arrives.
//
// # Blocking system calls
//
// A capture stops the process as SIGSTOP and SIGCONT do: epoll_wait and timed
// receives may return EINTR afterwards. The Go runtime retries; code that
// calls the kernel by itself has to.
package client
