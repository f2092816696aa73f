package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/image"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/python"
)

// private is the host inside one `ratoon run`.
type private struct {
	dir    *state.Dir
	files  *state.Run
	engine *machine.Engine
	kind   *machine.Machines
	log    *slog.Logger
}

// openPrivate cleans up after host processes that were killed, finds what a
// guest boots from and makes a run directory.
func openPrivate(ctx context.Context, g *global, memory int64, cpus int) (*private, error) {
	log := g.log()
	dir, err := g.state()
	if err != nil {
		return nil, err
	}
	driver := qemu.New(qemu.Options{Log: log})
	if err := sweepRuns(ctx, dir, driver, log); err != nil {
		log.Warn("clean up after earlier runs", "error", err)
	}
	boot, err := bootFiles(ctx, dir, g.err)
	if err != nil {
		return nil, err
	}
	run, err := dir.NewRun()
	if err != nil {
		return nil, err
	}
	engine, err := machine.New(ctx, machine.Options{Driver: driver, Dir: run.Path, Cache: dir.Templates(), Log: log})
	if err != nil {
		return nil, errors.Join(err, run.Remove())
	}
	return &private{dir, run, engine, engine.Kind(machine.Kind{Boot: boot, MemoryBytes: memory, CPUs: cpus}), log}, nil
}

// close ends the host; keep leaves its directory.
func (p *private) close(keep bool) error {
	err := p.engine.Close()
	if keep {
		return errors.Join(err, p.files.Close())
	}
	return errors.Join(err, p.files.Remove())
}

// bootFiles finds or builds kernel, initramfs and root image.
func bootFiles(ctx context.Context, dir *state.Dir, progress io.Writer) (machine.Boot, error) {
	cache := image.New(image.Options{Dir: image.Dir(dir.Path()), Kernel: os.Getenv(image.EnvKernel), ModulesDir: os.Getenv(image.EnvModules),
		Progress: image.Terminal(progress)})
	agentd, err := image.FindAgentd()
	if err != nil {
		return machine.Boot{}, err
	}
	kernel, err := cache.Kernel(ctx)
	if err != nil {
		return machine.Boot{}, err
	}
	initrd, initrdDigest, err := cache.Initramfs(ctx, kernel, agentd)
	if err != nil {
		return machine.Boot{}, err
	}
	root, err := cache.Builtin(ctx, image.BuiltinOptions{Helper: python.Helper})
	if err != nil {
		return machine.Boot{}, err
	}
	return machine.Boot{Kernel: kernel.Path, KernelDigest: kernel.Digest, Initrd: initrd, InitrdDigest: initrdDigest,
		Rootfs: root.Path, RootfsDigest: root.Digest, Cmdline: image.Cmdline}, nil
}

// sweepRuns brings the runs of killed host processes to rest: their machines
// and temporary files go, their published checkpoints stay. A run without
// checkpoints goes altogether.
func sweepRuns(ctx context.Context, dir *state.Dir, driver *qemu.Driver, log *slog.Logger) error {
	paths, err := dir.Paths()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		run, err := dir.Take(path)
		switch protocol.CodeOf(err) {
		case "":
			errs = append(errs, sweepRun(ctx, run, dir, driver, log))
		case protocol.CodeBusy:
		case protocol.CodeNotFound:
			errs = append(errs, removeStale(path))
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// staleAfter is how old a run directory without a journal must be to be no
// process's.
const staleAfter = time.Minute

// removeStale removes a run directory that never got a journal.
func removeStale(path string) error {
	info, err := os.Stat(path)
	if err != nil || time.Since(info.ModTime()) < staleAfter {
		return nil
	}
	return os.RemoveAll(path)
}

func sweepRun(ctx context.Context, run *state.Run, dir *state.Dir, driver *qemu.Driver, log *slog.Logger) error {
	engine, err := machine.New(ctx, machine.Options{Driver: driver, Dir: run.Path, Cache: dir.Templates(), Log: log})
	if err != nil {
		return errors.Join(err, run.Close())
	}
	ids, err := run.Journal.Sandboxes()
	if err != nil {
		return errors.Join(err, run.Close())
	}
	machines := engine.Kind(machine.Kind{})
	for _, id := range ids {
		if rest, err := sandbox.AtRest(run.Journal.Sandbox(id), id); err == nil && rest {
			continue
		}
		sb, err := sandbox.Recover(ctx, sandbox.Deps{Machines: machines, Checkpoints: machines.Checkpoints(id), Journal: run.Journal.Sandbox(id), Log: log}, id)
		if err != nil {
			return errors.Join(fmt.Errorf("recover %s: %w", run.Path, err), engine.Close(), run.Close())
		}
		sb.Close()
	}
	list, err := engine.List(ctx)
	if err != nil {
		return errors.Join(err, engine.Close(), run.Close())
	}
	if err := errors.Join(engine.SweepAll(ctx), engine.Close()); err != nil {
		return errors.Join(err, run.Close())
	}
	if !slices.ContainsFunc(list, func(c sandbox.Checkpoint) bool { return c.Class != sandbox.ClassInternal }) {
		return run.Remove()
	}
	os.Remove(run.Socket())
	return run.Close()
}
