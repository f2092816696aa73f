package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/protocol"
)

func newTree(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tree [SANDBOX]",
		Short: "Draw timelines and checkpoints of running and kept sandboxes",
		Args:  arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.tree(cmd.Context(), strings.Join(args, ""))
		},
	}
	outputFlag(cmd, g)
	return cmd
}

// tree shows one sandbox, which a daemon knows by name too, or all.
func (g *global) tree(ctx context.Context, want string) error {
	if want != "" {
		if err := daemon.CheckRef(want); err != nil {
			return err
		}
	}
	dir, err := g.state()
	if err != nil {
		return err
	}
	trees, err := g.daemonTrees(ctx, dir, want)
	if err != nil {
		return err
	}
	trees = slices.Grow(trees, 1) // never nil: no tree is [] as JSON
	if want == "" || len(trees) == 0 {
		private, err := g.readTrees(ctx, dir)
		if err != nil {
			return err
		}
		trees = append(trees, slices.DeleteFunc(private, func(t protocol.TreeResult) bool { return want != "" && string(t.Sandbox) != want })...)
	}
	if want != "" && len(trees) == 0 {
		return protocol.Errorf(protocol.CodeNotFound, "no sandbox %s under %s", line(want), dir.Path())
	}
	return g.print(trees, func(w io.Writer) {
		if len(trees) == 0 {
			fmt.Fprintf(w, "no sandboxes under %s\n", dir.Path())
		}
		for _, t := range trees {
			drawTree(w, t)
		}
	})
}

// daemonTrees asks ratoond, or reads what it left when it does not run.
func (g *global) daemonTrees(ctx context.Context, dir *state.Dir, want string) ([]protocol.TreeResult, error) {
	c, err := g.admin(ctx)
	if protocol.CodeOf(err) == protocol.CodeUnavailable {
		kept, err := readKept(dir, dir.DaemonPath())
		return slices.DeleteFunc(kept, func(t protocol.TreeResult) bool { return want != "" && string(t.Sandbox) != want }), err
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all := []daemon.Info{{ID: protocol.SandboxID(want)}}
	if want == "" {
		if all, err = c.Sandboxes(ctx); err != nil {
			return nil, err
		}
	}
	var out []protocol.TreeResult
	for _, s := range all {
		t, err := c.Tree(ctx, string(s.ID))
		if protocol.CodeOf(err) == protocol.CodeNotFound {
			continue // removed meanwhile, or a private one
		}
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// readTrees asks the hosts that run, and reads the journals of those that do
// not. A run that cannot be read is told on standard error.
func (g *global) readTrees(ctx context.Context, dir *state.Dir) ([]protocol.TreeResult, error) {
	paths, err := dir.Paths()
	if err != nil {
		return nil, err
	}
	trees := []protocol.TreeResult{}
	for _, path := range paths {
		t, ok, err := ask(ctx, filepath.Join(path, "ratoon.sock"))
		kept := []protocol.TreeResult{t}
		if err == nil && !ok {
			kept, err = readKept(dir, path)
		}
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			fmt.Fprintf(g.err, "ratoon: left out %s: %s\n", path, line(err.Error()))
			continue
		}
		trees = append(trees, kept...)
	}
	return trees, nil
}

func readKept(dir *state.Dir, path string) ([]protocol.TreeResult, error) {
	db, err := dir.Look(path)
	if code := protocol.CodeOf(err); code == protocol.CodeBusy || code == protocol.CodeNotFound {
		return nil, nil // it is starting or ending at this moment
	}
	if err != nil {
		return nil, err
	}
	defer db.Close()
	ids, err := db.Sandboxes()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	store, err := checkpoint.Open(path, checkpoint.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	list, _, err := store.List()
	if err != nil {
		return nil, err
	}
	var out []protocol.TreeResult
	for _, id := range ids {
		var own []sandbox.Checkpoint
		for _, m := range list {
			if m.Sandbox == id {
				own = append(own, machine.Describe(m))
			}
		}
		t, err := sandbox.ReadTree(db.Sandbox(id), id, own)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// drawTree prints one line per timeline, below the node it came from, and one
// per checkpoint, below the timeline that made it.
func drawTree(w io.Writer, t protocol.TreeResult) {
	fmt.Fprintf(w, "%s  %s\n", t.Sandbox, t.State)
	timelines := slices.Clone(t.Timelines)
	slices.SortStableFunc(timelines, func(a, b protocol.TreeTimeline) int { return compareNodes(a.Node, b.Node) })
	for _, tl := range timelines {
		indent := strings.Repeat("  ", 1+strings.Count(tl.Node, "."))
		fmt.Fprintf(w, "%s%s  %s", indent, tl.Node, tl.State)
		if tl.Label != "" {
			fmt.Fprintf(w, "  %q", tl.Label)
		}
		if tl.Reason != "" {
			fmt.Fprintf(w, "  (%s)", line(tl.Reason))
		}
		fmt.Fprintln(w)
		for _, cp := range t.Checkpoints {
			if cp.Timeline == tl.ID {
				fmt.Fprintf(w, "%s  %s  %s  %s", indent, cp.ID, cp.Class, size(cp.Bytes))
				if cp.Label != "" {
					fmt.Fprintf(w, "  %q", cp.Label)
				}
				fmt.Fprintln(w)
			}
		}
	}
}

// compareNodes orders index paths by their numbers: 0.2 before 0.10.
func compareNodes(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		if c := cmp.Or(cmp.Compare(len(as[i]), len(bs[i])), cmp.Compare(as[i], bs[i])); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}
