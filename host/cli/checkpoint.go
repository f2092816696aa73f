package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/protocol"
)

func newCheckpoint(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List, show, export, import and remove checkpoints",
		Args:  arguments(cobra.NoArgs), // an unknown command
		RunE:  func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the checkpoints of all sandboxes",
		Args:  arguments(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.listCheckpoints() },
	}
	show := &cobra.Command{
		Use:   "show CHECKPOINT",
		Short: "Print the manifest of a checkpoint",
		Args:  arguments(cobra.ExactArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.showCheckpoint(args[0]) },
	}
	rm := &cobra.Command{
		Use:   "rm CHECKPOINT...",
		Short: "Remove checkpoints of sandboxes that no longer run",
		Args:  arguments(cobra.MinimumNArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.removeCheckpoints(cmd.Context(), args) },
	}
	outputFlag(ls, g)
	outputFlag(show, g)
	cmd.AddCommand(ls, show, newExport(g), newImport(g), rm)
	return cmd
}

// stored is a checkpoint and where it is.
type stored struct {
	Run string `json:"run"`
	checkpoint.Manifest
}

// readCheckpoints lists what all run directories hold. Bad ones are told on
// standard error.
func (g *global) readCheckpoints(dir *state.Dir) ([]stored, error) {
	paths, err := dir.Paths()
	if err != nil {
		return nil, err
	}
	all := []stored{}
	for _, path := range append(paths, dir.DaemonPath()) {
		if _, err := os.Stat(filepath.Join(path, "journal.db")); err != nil {
			continue
		}
		store, err := checkpoint.Open(path, checkpoint.Options{ReadOnly: true})
		if err != nil {
			continue // removed meanwhile, or not yet made
		}
		list, damaged, err := store.List()
		if err != nil {
			return nil, fmt.Errorf("list checkpoints of %s: %w", path, err)
		}
		for _, d := range damaged {
			fmt.Fprintf(g.err, "ratoon: damaged: %s: %s\n", line(d.ID), line(d.Err.Error()))
		}
		for _, m := range list {
			if m.Class != checkpoint.ClassInternal {
				all = append(all, stored{path, m})
			}
		}
	}
	return all, nil
}

func (g *global) listCheckpoints() error {
	dir, err := g.state()
	if err != nil {
		return err
	}
	all, err := g.readCheckpoints(dir)
	if err != nil {
		return err
	}
	return g.print(all, func(w io.Writer) {
		fmt.Fprintln(w, "CHECKPOINT\tSANDBOX\tNODE\tCLASS\tDURABLE\tSIZE\tAGE\tLABEL")
		for _, s := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%v\t%s\t%v\t%s\n", s.ID, s.Sandbox, line(s.Node), s.Class, s.Durable, size(s.Bytes()),
				time.Since(s.Created).Round(time.Second), line(s.Label))
		}
	})
}

func (g *global) find(dir *state.Dir, name string) (stored, error) {
	id, err := protocol.ParseCheckpointID(name)
	if err != nil {
		return stored{}, err
	}
	all, err := g.readCheckpoints(dir)
	if err != nil {
		return stored{}, err
	}
	for _, s := range all {
		if s.ID == id {
			return s, nil
		}
	}
	return stored{}, protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s under %s", id, dir.Path())
}

func (g *global) showCheckpoint(name string) error {
	dir, err := g.state()
	if err != nil {
		return err
	}
	s, err := g.find(dir, name)
	if err != nil {
		return err
	}
	return g.print(s, func(w io.Writer) {
		for _, row := range [][2]any{
			{"id", s.ID}, {"label", line(s.Label)}, {"class", s.Class}, {"durable", s.Durable}, {"created", s.Created.Format(time.RFC3339Nano)},
			{"sandbox", s.Sandbox}, {"timeline", s.Timeline}, {"node", line(s.Node)}, {"parent", s.Parent}, {"base", s.Base},
			{"pages", size(s.Files.Pages.Size)}, {"runs", len(s.Files.Pages.Runs)}, {"device state", size(s.Files.State.Size)},
			{"memory", size(s.Machine.MemoryBytes)}, {"vmm", s.VMM.Name + " " + s.VMM.Version + " (" + s.VMM.Accel + ")"}, {"cpu", s.VMM.CPUModel},
			{"kernel", s.KernelDigest}, {"image", s.ImageDigest}, {"protocol", s.ProtocolVersion}, {"run", s.Run},
		} {
			fmt.Fprintf(w, "%v\t%v\n", row[0], row[1])
		}
	})
}

func (g *global) removeCheckpoints(ctx context.Context, names []string) error {
	dir, err := g.state()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, g.removeCheckpoint(ctx, dir, name))
	}
	return errors.Join(errs...)
}

// removeCheckpoint removes one; with the last one that can be used its run
// directory goes. What operations of a stopped sandbox refer to is no use.
func (g *global) removeCheckpoint(ctx context.Context, dir *state.Dir, name string) error {
	s, err := g.find(dir, name)
	if err != nil {
		return err
	}
	run, err := dir.Take(s.Run)
	if s.Run == dir.DaemonPath() && protocol.CodeOf(err) == protocol.CodeBusy {
		c, err := g.admin(ctx)
		if err != nil {
			return err
		}
		return c.RemoveCheckpoint(ctx, s.ID)
	}
	if protocol.CodeOf(err) == protocol.CodeBusy {
		return protocol.Errorf(protocol.CodeBusy, "checkpoint %s belongs to the running sandbox %s", s.ID, s.Sandbox)
	}
	if err != nil {
		return err
	}
	store, err := checkpoint.Open(s.Run, checkpoint.Options{Log: g.log()})
	if err == nil {
		err = store.Remove(s.ID)
	}
	if err != nil {
		return errors.Join(err, run.Close())
	}
	left, _, err := store.List()
	if err == nil && s.Run != dir.DaemonPath() && !slices.ContainsFunc(left, func(m checkpoint.Manifest) bool { return m.Class != checkpoint.ClassInternal }) {
		return run.Remove()
	}
	if err == nil {
		_, err = store.SweepBases(nil)
	}
	return errors.Join(err, run.Close())
}
