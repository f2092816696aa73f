// Package checkpoint stores checkpoints and the bases they are written over.
//
// A checkpoint is a directory with the device state, the pages written since
// its base, and a manifest. It is made in a temporary directory and renamed
// into place as the last step, so an id is either whole or unknown:
//
//	store, err := checkpoint.Open(dir, checkpoint.Options{})
//	err = store.Room(expected)                  // before the machine is paused
//	p, err := store.Begin(protocol.NewCheckpointID())
//	defer p.Discard()                           // no effect once published
//	// ... write p.StatePath() and p.PagesPath() while the VM is paused
//	err = p.Publish(ctx, manifest)              // survives the daemon
//	err = store.MakeDurable(ctx, manifest.ID)   // survives the host
//
// Later Compact stores the pages as frames that checkpoints share, Collect
// removes what nobody needs, Examine reads everything to the last byte, and
// Export and ImportFile take a checkpoint to another host:
//
//	err = store.Compact(ctx, manifest.ID)
//	collected, err := store.Collect(ctx, checkpoint.CollectOptions{})
//
// docs/CHECKPOINTS.md describes the files.
//
// Concurrency: a Store is safe for concurrent use. One process writes a
// directory; any number may read it with Options.ReadOnly. Calls that change
// one id run one after another; a reference (a manifest that names a base, a
// base made from a checkpoint) is never published while what it names is
// being removed. Who reads a checkpoint while it is compacted reads the old
// files or the new ones, and never a mixture.
//
// Failure: every error carries a protocol code. A full disk is
// CodeDiskFull, damage CodeCheckpointLost with the file's name in the
// details, another platform or a newer format CodeCheckpointRefused. A
// Publish that fails leaves nothing; an fsync that fails is never tried again
// (the kernel may have dropped the pages and would answer success), so the
// checkpoint stays published and must be removed if it had to be durable.
package checkpoint
