package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

func newExport(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "export CHECKPOINT [FILE|-]",
		Short: "Write a checkpoint with its memory as one file for another host",
		Long: `Export writes a checkpoint as one file that "ratoon checkpoint import" reads: to
CHECKPOINT.ratoon, to FILE, or for - to standard output. It holds the guest's whole
memory, secrets included.`,
		Args: arguments(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error { return g.exportCheckpoint(cmd.Context(), args) },
	}
}

func newImport(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Take in a checkpoint that another host has exported, and print its id",
		Long: `Import gives the checkpoint to ratoond where one serves the state directory, else
it keeps it for "ratoon run --from". The file is held to all its checksums before
anything is published. To import a checkpoint that is here already changes nothing.`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return g.importCheckpoint(cmd.Context(), args[0]) },
	}
	return cmd
}

func (g *global) exportCheckpoint(ctx context.Context, args []string) error {
	id, err := protocol.ParseCheckpointID(args[0])
	if err != nil {
		return err
	}
	path := string(id) + ".ratoon"
	if len(args) > 1 {
		path = args[1]
	}
	export, err := g.exporter(ctx, id)
	if err != nil {
		return err
	}
	if path != "-" {
		return writeWhole(path, export)
	}
	if f, ok := g.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return usage("export: standard output is a terminal; name a file")
	}
	return export(g.out)
}

// exporter finds who has a checkpoint: a directory that can be read, else
// ratoond.
func (g *global) exporter(ctx context.Context, id protocol.CheckpointID) (func(io.Writer) error, error) {
	dir, err := g.state()
	if err != nil {
		return nil, err
	}
	s, err := g.find(dir, string(id))
	if protocol.CodeOf(err) == protocol.CodeUnknownCheckpoint {
		if c, clientErr := g.admin(ctx); clientErr == nil {
			return func(w io.Writer) error { return c.Export(ctx, id, w) }, nil
		}
	}
	if err != nil {
		return nil, err
	}
	store, err := checkpoint.Open(s.Run, checkpoint.Options{ReadOnly: true})
	return func(w io.Writer) error { return store.Export(ctx, id, w) }, err
}

// writeWhole makes a file that is whole or not there; one that is there
// already stays.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(protocol.Errorf(protocol.CodeInvalidArgument, "%s is there already", path), err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".ratoon-export-")
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "write %s: %v", path, err)
	}
	defer func() {
		f.Close()
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := fault.Point("cli.export.fsync"); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := fault.Point("cli.export.rename"); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func (g *global) importCheckpoint(ctx context.Context, path string) error {
	r := g.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return protocol.Errorf(protocol.CodeInvalidArgument, "import: %v", err)
		}
		defer f.Close()
		r = f
	}
	c, err := g.admin(ctx)
	if err == nil {
		m, err := c.Import(ctx, r)
		if err != nil {
			return err
		}
		fmt.Fprintln(g.out, m.ID)
		return nil
	}
	if protocol.CodeOf(err) != protocol.CodeUnavailable || cmp.Or(g.socket, os.Getenv(EnvSocket)) != "" {
		return err
	}
	id, err := g.importRun(ctx, r)
	if err != nil {
		return err
	}
	fmt.Fprintln(g.out, id)
	return nil
}

// importRun keeps a checkpoint in a run directory of its own, as an ended run
// would have.
func (g *global) importRun(ctx context.Context, r io.Reader) (protocol.CheckpointID, error) {
	dir, err := g.state()
	if err != nil {
		return "", err
	}
	run, err := dir.NewRun()
	if err != nil {
		return "", err
	}
	store, err := checkpoint.Open(run.Path, checkpoint.Options{Log: g.log()})
	if err != nil {
		return "", errors.Join(err, run.Remove())
	}
	m, _, err := store.ImportFile(ctx, r)
	if err != nil {
		return "", errors.Join(err, run.Remove())
	}
	there, err := g.inAnotherRun(ctx, dir, store, m.ID)
	if err != nil || there {
		return m.ID, errors.Join(err, run.Remove())
	}
	return m.ID, run.Close()
}

// inAnotherRun tells whether a run has the checkpoint already. With another
// content it is CodeConflict.
func (g *global) inAnotherRun(ctx context.Context, dir *state.Dir, store *checkpoint.Store, id protocol.CheckpointID) (bool, error) {
	all, err := g.readCheckpoints(dir)
	if err != nil {
		return false, err
	}
	for _, s := range all {
		if s.ID != id || s.Run == store.Dir() {
			continue
		}
		other, err := checkpoint.Open(s.Run, checkpoint.Options{ReadOnly: true})
		if err != nil {
			return false, err
		}
		return true, checkpoint.Same(ctx, store, other, id)
	}
	return false, nil
}
