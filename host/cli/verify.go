package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/protocol"
)

func newVerify(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [CHECKPOINT...]",
		Short: "Read checkpoints to the last byte, and say what is damaged",
		Long: `Verify reads checkpoints, all when none is named, with the memory under them, and
holds each byte to its checksum. It names the file and the place of damage and goes
on. What is not durable has fewer checksums: none of its base. Exit status 125 says
that something is damaged.`,
		RunE: func(cmd *cobra.Command, args []string) error { return g.verify(cmd.Context(), args) },
	}
	outputFlag(cmd, g)
	return cmd
}

// verified is what `checkpoint verify -o json` prints of one.
type verified struct {
	Run string `json:"run"`
	checkpoint.Report
}

func (g *global) verify(ctx context.Context, names []string) error {
	dir, err := g.state()
	if err != nil {
		return err
	}
	tasks, err := g.verifyTasks(dir, names)
	if err != nil {
		return err
	}
	all, damaged := []verified{}, 0
	meter := newMeter(g.err)
	for _, t := range tasks {
		err := t.store.Examine(ctx, t.ids, func(p checkpoint.Progress) { meter.show(p) }, func(r checkpoint.Report) error {
			all = append(all, verified{t.store.Dir(), r})
			if len(r.Damage) > 0 {
				damaged++
			}
			return nil
		})
		if err != nil {
			meter.clear()
			return err
		}
	}
	meter.clear()
	err = g.print(all, func(w io.Writer) {
		fmt.Fprintln(w, "CHECKPOINT\tRESULT\tREAD\tDAMAGE")
		for _, v := range all {
			v.rows(w)
		}
	})
	if damaged > 0 {
		err = errors.Join(err, protocol.Errorf(protocol.CodeCheckpointLost, "%d of %d checkpoints are damaged", damaged, len(all)))
	}
	return err
}

func (v verified) rows(w io.Writer) {
	result := "ok"
	switch {
	case len(v.Damage) > 0:
		result = "damaged"
	case !v.Durable:
		result = "ok, not durable"
	}
	if len(v.Damage) == 0 {
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", v.ID, result, size(v.Bytes))
	}
	for _, d := range v.Damage {
		of := ""
		if d.Base != "" {
			of = string(d.Base) + " "
		}
		if d.File != "" {
			of += fmt.Sprintf("%s at byte %d: ", d.File, d.Offset)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", v.ID, result, size(v.Bytes), of, line(d.Reason))
	}
}

// verifyTask is what one store has of what is wanted; no ids: all.
type verifyTask struct {
	store *checkpoint.Store
	ids   []protocol.CheckpointID
}

func (g *global) verifyTasks(dir *state.Dir, names []string) ([]verifyTask, error) {
	stores, err := g.stores(dir)
	if err != nil {
		return nil, err
	}
	tasks := make([]verifyTask, len(stores))
	for i, s := range stores {
		tasks[i].store = s
	}
	if len(names) == 0 {
		return tasks, nil
	}
	for _, name := range names {
		id, err := protocol.ParseCheckpointID(name)
		if err != nil {
			return nil, err
		}
		found := false
		for i := range tasks {
			if _, err := tasks[i].store.Get(id); protocol.CodeOf(err) != protocol.CodeUnknownCheckpoint {
				tasks[i].ids, found = append(tasks[i].ids, id), true
			}
		}
		if !found {
			return nil, protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s under %s", id, dir.Path())
		}
	}
	wanted := tasks[:0]
	for _, t := range tasks {
		if len(t.ids) > 0 {
			wanted = append(wanted, t)
		}
	}
	return wanted, nil
}

// meter shows progress on a terminal.
type meter struct {
	w     io.Writer // nil: not a terminal
	shown time.Time
}

func newMeter(w io.Writer) *meter {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &meter{w: w}
	}
	return &meter{}
}

func (m *meter) show(p checkpoint.Progress) {
	if m.w == nil || p.Total == 0 || time.Since(m.shown) < 100*time.Millisecond {
		return
	}
	m.shown = time.Now()
	fmt.Fprintf(m.w, "\r\x1b[K%s  %d %% of %s", p.Checkpoint, 100*p.Done/p.Total, size(p.Total))
}

func (m *meter) clear() {
	if m.w != nil && !m.shown.IsZero() {
		fmt.Fprint(m.w, "\r\x1b[K")
	}
}
