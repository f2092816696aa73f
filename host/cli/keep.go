package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

func newPin(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "pin CHECKPOINT...",
		Short: "Keep checkpoints from being removed until they are unpinned",
		Long: `Pin makes checkpoints durable and keeps them: neither rm nor the removal of their
sandbox, neither age nor expiry takes them.`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return g.pin(cmd.Context(), args, true) },
	}
}

func newUnpin(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "unpin CHECKPOINT...",
		Short: "Let pinned checkpoints be removed again",
		Args:  arguments(cobra.MinimumNArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.pin(cmd.Context(), args, false) },
	}
}

func (g *global) pin(ctx context.Context, names []string, pinned bool) error {
	return g.changeAll(ctx, names, change{
		remote: func(ctx context.Context, c *admin.Client, id protocol.CheckpointID) error {
			_, err := c.ChangeCheckpoint(ctx, id, admin.ChangeCheckpoint{Pinned: &pinned})
			return err
		},
		local: func(ctx context.Context, s ended, id protocol.CheckpointID) error {
			if pinned {
				return s.Pin(ctx, id)
			}
			return s.Unpin(id)
		},
	})
}

func newCompact(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "compact CHECKPOINT...",
		Short: "Store checkpoints in the way that takes the least space",
		Long: `Compact makes checkpoints durable and stores their pages compressed, those that other
checkpoints of the sandbox have too only once. To restore one takes longer then.
Ratoond does so by itself with the oldest, see limits.hot_bytes.`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.changeAll(cmd.Context(), args, change{
				remote: func(ctx context.Context, c *admin.Client, id protocol.CheckpointID) error {
					_, err := c.Compact(ctx, id)
					return err
				},
				local: func(ctx context.Context, s ended, id protocol.CheckpointID) error {
					if err := s.MakeDurable(ctx, id); err != nil {
						return err
					}
					return s.Compact(ctx, id)
				},
			})
		},
	}
}

func newExpire(g *global) *cobra.Command {
	return &cobra.Command{
		Use:     "expire CHECKPOINT WHEN",
		Short:   "Say when a checkpoint may go: after a time such as 36h, at a time as in RFC 3339, or never",
		Example: "  ratoon checkpoint expire cp-o23aeagbx37jrz6m 36h\n  ratoon checkpoint expire cp-o23aeagbx37jrz6m never",
		Args:    arguments(cobra.ExactArgs(2)),
		RunE:    func(cmd *cobra.Command, args []string) error { return g.expire(cmd.Context(), args[0], args[1]) },
	}
}

// parseWhen reads never, a time, or a time from now.
func parseWhen(s string, now time.Time) (time.Time, error) {
	if s == "never" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(d).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return at, usage("%q: want a time from now such as 36h, a time such as %s, or never", s, now.UTC().Format(time.RFC3339))
	}
	return at, nil
}

func (g *global) expire(ctx context.Context, name, when string) error {
	at, err := parseWhen(when, time.Now())
	if err != nil {
		return err
	}
	text := ""
	if !at.IsZero() {
		text = at.Format(time.RFC3339)
	}
	return g.changeAll(ctx, []string{name}, change{
		remote: func(ctx context.Context, c *admin.Client, id protocol.CheckpointID) error {
			_, err := c.ChangeCheckpoint(ctx, id, admin.ChangeCheckpoint{Expires: text, Lasts: at.IsZero()})
			return err
		},
		local: func(_ context.Context, s ended, id protocol.CheckpointID) error {
			return s.SetExpiry(id, at)
		},
	})
}

func newRemoveCheckpoint(g *global) *cobra.Command {
	var o removal
	cmd := &cobra.Command{
		Use:   "rm CHECKPOINT...",
		Short: "Remove checkpoints that nothing needs",
		Long: `Rm removes checkpoints. One that others are based on is refused, unless --cascade
removes those with it; what goes is listed first. One that is pinned is refused
until it is unpinned, also with --cascade.`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return g.removeCheckpoints(cmd.Context(), o, args) },
	}
	cmd.Flags().BoolVar(&o.cascade, "cascade", false, "also remove what is based on them")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "with --cascade: only list what would go")
	return cmd
}

// removal are the flags of `checkpoint rm`.
type removal struct{ cascade, dryRun bool }

func (g *global) removeCheckpoints(ctx context.Context, o removal, names []string) error {
	if o.dryRun && !o.cascade {
		return usage("--dry-run goes with --cascade")
	}
	if !o.cascade {
		return g.changeAll(ctx, names, change{
			remote: func(ctx context.Context, c *admin.Client, id protocol.CheckpointID) error {
				return c.RemoveCheckpoint(ctx, id)
			},
			local: func(_ context.Context, s ended, id protocol.CheckpointID) error { return s.remove(id) },
		})
	}
	return g.changeAll(ctx, names, change{
		remote: func(ctx context.Context, c *admin.Client, id protocol.CheckpointID) error {
			list, err := c.Dependents(ctx, id)
			if err != nil {
				return err
			}
			for _, cp := range list {
				g.willGo(cp.ID, cp.Sandbox, cp.Label)
			}
			if !o.dryRun {
				_, err = c.RemoveCheckpoints(ctx, id)
			}
			return err
		},
		local: func(_ context.Context, s ended, id protocol.CheckpointID) error {
			ids, err := s.Cascade(id)
			if err != nil {
				return err
			}
			for _, id := range ids {
				m, _ := s.Get(id) // a damaged one goes too
				g.willGo(id, m.Sandbox, m.Label)
			}
			for _, id := range ids {
				if o.dryRun {
					break
				}
				if err := s.remove(id); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

func (g *global) willGo(id protocol.CheckpointID, sandbox protocol.SandboxID, label string) {
	fmt.Fprintf(g.out, "%s  %s  %s\n", id, sandbox, line(label))
}

func newUse(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "du",
		Short: "Show what disk space the checkpoints of each sandbox take",
		Long: `Du adds up the disk space of each sandbox's checkpoints: what goes with the last
of them, and the bases that it shares with others, templates among them, in full.`,
		Args: arguments(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return g.diskUse() },
	}
	outputFlag(cmd, g)
	return cmd
}

// used is what `checkpoint du -o json` prints of one run directory.
type used struct {
	Run string `json:"run"`
	checkpoint.TreesUse
}

func (g *global) diskUse() error {
	dir, err := g.state()
	if err != nil {
		return err
	}
	stores, err := g.stores(dir)
	if err != nil {
		return err
	}
	all := []used{}
	for _, s := range stores {
		u, err := s.Trees()
		if err != nil {
			return err
		}
		all = append(all, used{s.Dir(), u})
	}
	return g.print(all, func(w io.Writer) {
		fmt.Fprintln(w, "SANDBOX\tCHECKPOINTS\tOWN\tSHARED")
		var shared, unused int64
		for _, u := range all {
			for _, t := range u.Trees {
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", t.Sandbox, t.Checkpoints, size(t.Own), size(t.Shared))
			}
			shared, unused = shared+u.Shared, unused+u.Unused
		}
		fmt.Fprintf(w, "shared, once\t\t\t%s\nbases without checkpoints\t\t%s\t\n", size(shared), size(unused))
	})
}
