package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/protocol"
)

func newSnapshot(g *global) *cobra.Command {
	var r admin.MakeSnapshot
	cmd := &cobra.Command{
		Use:   "snapshot SANDBOX",
		Short: "Make a checkpoint of a sandbox and print its id",
		Args:  arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.admin(cmd.Context())
			if err != nil {
				return err
			}
			cp, err := c.Snapshot(cmd.Context(), args[0], r)
			if err != nil {
				return err
			}
			return g.print(cp, func(w io.Writer) { fmt.Fprintln(w, cp.ID) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Node, "node", "", "the node of the tree (default: the first line)")
	f.StringVar(&r.Label, "label", "", "a note that lists show")
	f.BoolVar(&r.Durable, "durable", false, "wait until it survives a crash of the host")
	outputFlag(cmd, g)
	return cmd
}

func newRestore(g *global) *cobra.Command {
	var r admin.Restore
	cmd := &cobra.Command{
		Use:   "restore SANDBOX CHECKPOINT",
		Short: "Put a sandbox back to a checkpoint",
		Long: `Restore replaces the timeline that holds a node by one loaded from a checkpoint of
any sandbox of the same kind. The present is kept as a checkpoint of class auto,
and what branched from the replaced timeline ends, unless told otherwise.`,
		Args: arguments(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if r.Checkpoint, err = protocol.ParseCheckpointID(args[1]); err != nil {
				return err
			}
			c, err := g.admin(cmd.Context())
			if err != nil {
				return err
			}
			_, err = c.Restore(cmd.Context(), args[0], r)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Node, "node", "", "the node of the tree (default: the first line)")
	f.BoolVar(&r.DropPresent, "drop-present", false, "do not keep a checkpoint of the present")
	f.BoolVar(&r.Detach, "detach", false, "let what branched from the replaced timeline go on")
	return cmd
}

func newBranch(g *global) *cobra.Command {
	var r admin.MakeBranch
	timeout, at := time.Duration(0), ""
	cmd := &cobra.Command{
		Use:     "branch SANDBOX N",
		Aliases: []string{"fork"},
		Short:   "Make N running copies of a sandbox's machine",
		Args:    arguments(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 {
				return usage("branch: %s children; want a number from 1 on", line(args[1]))
			}
			r.N, r.Timeout = n, timeout.Seconds()
			if at != "" {
				if r.At, err = protocol.ParseCheckpointID(at); err != nil {
					return err
				}
			}
			c, err := g.admin(cmd.Context())
			if err != nil {
				return err
			}
			b, err := c.Branch(cmd.Context(), args[0], r)
			if err != nil {
				return err
			}
			return g.print(b, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "at", "", "the checkpoint to branch from (default: a new one of the first line)")
	f.IntVar(&r.MaxLive, "max-live", 0, "so many at once (0: all)")
	f.IntVar(&r.MinOK, "min-ok", 0, "go on when at least so many could be started (0: all)")
	f.DurationVar(&timeout, "timeout", 0, "end each child after this time (0: never)")
	outputFlag(cmd, g)
	return cmd
}

func newEvents(g *global) *cobra.Command {
	cursor, follow := int64(0), false
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what happened to sandboxes",
		Args:  arguments(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.events(cmd.Context(), cursor, follow) },
	}
	cmd.Flags().Int64Var(&cursor, "cursor", 0, "go on after the event with this cursor (0: the oldest that is kept)")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more")
	outputFlag(cmd, g)
	return cmd
}

func (g *global) events(ctx context.Context, cursor int64, follow bool) error {
	c, err := g.admin(ctx)
	if err != nil {
		return err
	}
	show := func(e daemon.Event) error {
		if e.Lost {
			fmt.Fprintln(g.err, "ratoon: events before this one are no longer kept")
		}
		what := string(e.Node)
		if e.Checkpoint != "" {
			what += " " + string(e.Checkpoint)
		}
		if e.Exec != "" {
			what += " " + string(e.Exec)
		}
		if e.Error != nil {
			what += " " + e.Error.Message
		}
		_, err := fmt.Fprintf(g.out, "%s %d %s %s %s\n", e.Time.Format(time.RFC3339), e.Cursor, e.Kind, e.Sandbox, line(what))
		return err
	}
	if g.output == "json" {
		out := json.NewEncoder(g.out)
		show = func(e daemon.Event) error { return out.Encode(e) }
	}
	return c.Events(ctx, cursor, follow, show)
}
