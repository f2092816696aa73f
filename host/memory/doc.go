// Package memory holds the guest RAM of virtual machines outside of them: the
// base that many machines map privately, and the delta of pages that one of
// them wrote.
//
//	base, err := memory.OpenBase(id, path)         // never written again
//	runs, err := memory.Capture(ctx, pid, base, f) // pid is paused and maps base privately
//	delta := &memory.Delta{Path: f.Name(), Runs: runs}
//	err = delta.Apply(ctx, pid2, base)             // pid2 maps base and has loaded no device state yet
//	base2, err := memory.Flatten(ctx, base, delta, id2, path2)
//
// A delta is cumulative since its base: a machine onto which a delta was
// applied is captured with those pages again, so there are no chains. Places
// are offsets in the base file, never guest addresses. A page that is zero now
// and was not in the base is data: it is a run with Zero set.
//
// The kernel keeps the record of what was written: in a private mapping of a
// file a written page is anonymous. That only holds while nobody discards
// pages of the mapping, which is why no driver offers a balloon.
//
// # Concurrency
//
// A Base is safe for concurrent use and shared by all machines of the process.
// Capture and Apply want the target paused; this package cannot check that.
//
// # Failure
//
// Nothing here is trusted to be whole: a base that is not mapped privately and
// in full by the target is an error rather than an empty delta, and each run
// carries a checksum that is verified whenever it is used. A damaged delta is
// protocol.CodeCheckpointLost, a full disk protocol.CodeDiskFull. After an
// error of Apply the target's memory is undefined; kill it.
package memory
