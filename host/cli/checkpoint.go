package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/protocol"
)

func newCheckpoint(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List, keep, verify, move and remove checkpoints",
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
	outputFlag(ls, g)
	outputFlag(show, g)
	cmd.AddCommand(ls, show, newVerify(g), newUse(g), newPin(g), newUnpin(g), newExpire(g), newCompact(g), newExport(g), newImport(g), newRemoveCheckpoint(g))
	return cmd
}

// stored is a checkpoint and where it is.
type stored struct {
	Run string `json:"run"`
	checkpoint.Manifest
}

// stores opens the stores of all run directories, and of ratoond's, for
// reading.
func (g *global) stores(dir *state.Dir) ([]*checkpoint.Store, error) {
	paths, err := dir.Paths()
	if err != nil {
		return nil, err
	}
	var all []*checkpoint.Store
	for _, path := range append(paths, dir.DaemonPath()) {
		if _, err := os.Stat(filepath.Join(path, "journal.db")); err != nil {
			continue
		}
		store, err := checkpoint.Open(path, checkpoint.Options{ReadOnly: true})
		if err != nil {
			continue // removed meanwhile, or not yet made
		}
		all = append(all, store)
	}
	return all, nil
}

// readCheckpoints lists what all run directories hold. Bad ones are told on
// standard error.
func (g *global) readCheckpoints(dir *state.Dir) ([]stored, error) {
	stores, err := g.stores(dir)
	if err != nil {
		return nil, err
	}
	all := []stored{}
	for _, store := range stores {
		list, damaged, err := store.List()
		if err != nil {
			return nil, fmt.Errorf("list checkpoints of %s: %w", store.Dir(), err)
		}
		for _, d := range damaged {
			fmt.Fprintf(g.err, "ratoon: damaged: %s: %s\n", line(d.ID), line(d.Err.Error()))
		}
		for _, m := range list {
			if m.Class != checkpoint.ClassInternal {
				all = append(all, stored{store.Dir(), m})
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
	store, err := checkpoint.Open(s.Run, checkpoint.Options{ReadOnly: true})
	if err == nil {
		s.Manifest, err = store.Get(s.ID) // with its run table
	}
	if err != nil {
		return err
	}
	return g.print(s, func(w io.Writer) {
		for _, row := range [][2]any{
			{"id", s.ID}, {"label", line(s.Label)}, {"class", s.Class}, {"durable", s.Durable}, {"created", s.Created.Format(time.RFC3339Nano)}, {"expires", expiry(s.Expires)},
			{"sandbox", s.Sandbox}, {"timeline", s.Timeline}, {"node", line(s.Node)}, {"parent", s.Parent}, {"base", s.Base},
			{"pages", size(s.Files.Pages.Size)}, {"runs", len(s.Files.Pages.Runs)}, {"stored", storedAs(s.Manifest)}, {"device state", size(s.Files.State.Size)},
			{"memory", size(s.Machine.MemoryBytes)}, {"vmm", s.VMM.Name + " " + s.VMM.Version + " (" + s.VMM.Accel + ")"}, {"cpu", s.VMM.CPUModel},
			{"kernel", s.KernelDigest}, {"image", s.ImageDigest}, {"protocol", s.ProtocolVersion}, {"run", s.Run},
		} {
			fmt.Fprintf(w, "%v\t%v\n", row[0], row[1])
		}
	})
}

// storedAs says how the pages are kept.
func storedAs(m checkpoint.Manifest) string {
	if f := m.Files.Frames; f != nil {
		return fmt.Sprintf("frames of %d files, %s of its own", len(f.Objects), size(f.Own))
	}
	return "flat"
}

func expiry(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return at.Format(time.RFC3339)
}
