// Package image makes what a guest boots from: a kernel, an initramfs with
// agentd as /init, and a read-only root file system. All of it is kept in a
// cache keyed by the inputs, so that the long work is done once per host.
//
//	cache := image.New(image.Options{Dir: image.Dir(stateDir), Progress: image.Terminal(os.Stderr)})
//	agentd, err := image.FindAgentd()
//	kernel, err := cache.Kernel(ctx)
//	initramfs, err := cache.Initramfs(ctx, kernel, agentd)
//	root, err := cache.Builtin(ctx, image.BuiltinOptions{Helper: python.Helper})
//	// VM: kernel.Path, initramfs.Path, root.Path, image.Cmdline
//
// A result is pinned: the first kernel and root found for a set of inputs are
// used until Options.Refresh asks for new ones, because templates and
// checkpoints name them by digest. Older generations stay until Remove.
//
// Concurrency: a Cache is safe for concurrent use, also by several processes:
// one builds under a file lock, the others wait and use its result. Published
// entries are immutable.
//
// Failure model: an entry is made in a temporary directory, described by a
// manifest with sizes and SHA-256, fsynced and renamed into place. A process
// killed midway leaves a temporary directory, which the next build (or Sweep)
// removes. An entry whose files do not match their manifest is set aside and
// built again. Errors a user can act on are *Error and carry the remedy.
package image
