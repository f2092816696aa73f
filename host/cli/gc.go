package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/protocol"
)

func newCollect(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what nobody needs from the state directory",
		Long: `Gc removes checkpoints whose time has come, what operations left that are over, bases
without checkpoints, templates that were not used for a week, and what a killed
process left half-way. Ratoond does its part itself; when it does not run, its
directory is left to its next start. Gc may run at any time and be ended at any
time.`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return g.collect(cmd.Context()) },
	}
	outputFlag(cmd, g)
	return cmd
}

func (g *global) collect(ctx context.Context) error {
	dir, err := g.state()
	if err != nil {
		return err
	}
	all, err := g.collectRuns(ctx, dir)
	errs := []error{err}
	c, err := g.admin(ctx)
	switch protocol.CodeOf(err) {
	case "":
		there, err := c.Collect(ctx)
		errs = append(errs, err)
		all.Expired = append(all.Expired, there.Expired...)
		all.Checkpoints = append(all.Checkpoints, there.Checkpoints...)
		all.Bases = append(all.Bases, there.Bases...)
		all.Objects, all.Packed = all.Objects+there.Objects, all.Packed+there.Packed
		all.Templates = append(all.Templates, there.Templates...)
		all.Freed += there.Freed
	case protocol.CodeUnavailable: // nobody serves
	default:
		errs = append(errs, err)
	}
	err = g.print(all, func(w io.Writer) {
		for _, row := range []struct {
			what string
			n    int
		}{{"expired checkpoints", len(all.Expired)}, {"checkpoints of ended operations", len(all.Checkpoints)}, {"bases", len(all.Bases)}, {"files of frames", all.Objects}, {"templates", len(all.Templates)}} {
			fmt.Fprintf(w, "%s\t%d\n", row.what, row.n)
		}
		fmt.Fprintf(w, "freed\t%s\n", size(all.Freed))
	})
	return errors.Join(append(errs, err)...)
}

// collectRuns cleans up after ended runs, and the templates.
func (g *global) collectRuns(ctx context.Context, dir *state.Dir) (daemon.Collected, error) {
	log := g.log()
	c := daemon.NewCollected()
	if err := sweepRuns(ctx, dir, qemu.New(qemu.Options{Log: log}), log); err != nil {
		log.Warn("clean up after earlier runs", "error", err)
	}
	paths, err := dir.Paths()
	if err != nil {
		return c, err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, collectRun(ctx, dir, path, log, &c))
	}
	removed, freed, err := machine.PruneTemplates(dir.Templates(), log)
	c.Templates = append(c.Templates, removed...)
	c.Freed += freed
	return c, errors.Join(append(errs, err)...)
}

// collectRun collects in the directory of a run that has ended.
func collectRun(ctx context.Context, dir *state.Dir, path string, log *slog.Logger, c *daemon.Collected) error {
	run, err := dir.Take(path)
	switch protocol.CodeOf(err) {
	case "":
	case protocol.CodeBusy, protocol.CodeNotFound:
		return nil
	default:
		return err
	}
	store, err := checkpoint.Open(path, checkpoint.Options{Log: log})
	if err != nil {
		return errors.Join(err, run.Close())
	}
	before := store.Freed()
	err = expire(store, c)
	got, collectErr := store.Collect(ctx, checkpoint.CollectOptions{})
	c.Objects, c.Packed = c.Objects+got.Objects, c.Packed+got.Packed
	c.Checkpoints, c.Bases, c.Freed = append(c.Checkpoints, got.Checkpoints...), append(c.Bases, got.Bases...), c.Freed+store.Freed()-before
	return errors.Join(err, collectErr, ended{store, run, false}.tidy())
}

// expire removes the checkpoints of an ended run whose time has come.
func expire(store *checkpoint.Store, c *daemon.Collected) error {
	list, _, err := store.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range checkpoint.Expired(list, checkpoint.Policy{KeepLast: len(list)}, time.Now()) {
		switch err := store.Remove(id); protocol.CodeOf(err) {
		case "":
			c.Expired = append(c.Expired, id)
		case protocol.CodeCheckpointInUse:
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
