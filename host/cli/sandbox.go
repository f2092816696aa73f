package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/protocol"
)

func newSandbox(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Make and use sandboxes that outlive one program (needs ratoond)",
		Args:  arguments(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNew(g), newList(g), newShow(g), newExec(g), newAttach(g), newLogs(g), newCopy(g), newRemove(g))
	return cmd
}

// newOptions are the flags of `ratoon sandbox new`.
type newOptions struct {
	name     string
	memory   string
	cpus     int
	from     string
	seed     string
	maxDepth int
	maxWidth int
	maxLive  int
	maxMem   string
	maxDisk  string
	llmCalls int64
	llmToks  int64
	llmCost  float64
}

func newNew(g *global) *cobra.Command {
	var o newOptions
	cmd := &cobra.Command{
		Use:     "new",
		Short:   "Start a sandbox and print its id",
		Args:    arguments(cobra.NoArgs),
		Example: "  ratoon sandbox new --name web\n  ratoon exec web -- python3 -V",
		RunE:    func(cmd *cobra.Command, _ []string) error { return g.newSandbox(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "a name beside its id: a-z, 0-9, '.', '_', '-'")
	f.StringVar(&o.memory, "memory", "256M", "guest RAM of each machine")
	f.IntVar(&o.cpus, "cpus", 1, "processors of each machine")
	f.StringVar(&o.from, "from", "", "start from this checkpoint instead of a fresh machine")
	f.StringVar(&o.seed, "seed", "", "make the helpers' random numbers the same in every sandbox with this seed")
	f.IntVar(&o.maxDepth, "max-depth", 0, "branches of branches (default 16)")
	f.IntVar(&o.maxWidth, "max-width", 0, "children of one branch (default 64)")
	f.IntVar(&o.maxLive, "max-live", 0, "machines running at once (default 32)")
	f.StringVar(&o.maxMem, "max-memory", "", "guest RAM of all running machines")
	f.StringVar(&o.maxDisk, "max-disk", "", "disk space of all checkpoints")
	f.Int64Var(&o.llmCalls, "llm-budget", 0, "prompts that may be sent to the model (0: no limit)")
	f.Int64Var(&o.llmToks, "llm-tokens", 0, "tokens that may be used (0: no limit)")
	f.Float64Var(&o.llmCost, "llm-cost", 0, "US dollars that may be spent on the model (0: no limit)")
	outputFlag(cmd, g)
	return cmd
}

func (o newOptions) request() (r admin.CreateSandbox, err error) {
	r = admin.CreateSandbox{Name: o.name, CPUs: o.cpus, Seed: o.seed,
		Limits: admin.Limits{Depth: o.maxDepth, Width: o.maxWidth, Live: o.maxLive, LLMCalls: o.llmCalls, LLMTokens: o.llmToks, LLMMicroUSD: int64(o.llmCost * 1e6)}}
	if o.from != "" {
		if r.From, err = protocol.ParseCheckpointID(o.from); err != nil {
			return r, err
		}
	}
	for _, s := range []struct {
		text string
		to   *int64
	}{{o.memory, &r.MemoryBytes}, {o.maxMem, &r.Limits.MemoryBytes}, {o.maxDisk, &r.Limits.DiskBytes}} {
		if s.text == "" {
			continue
		}
		if *s.to, err = parseSize(s.text); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (g *global) newSandbox(ctx context.Context, o newOptions) error {
	r, err := o.request()
	if err != nil {
		return err
	}
	c, err := g.admin(ctx)
	if err != nil {
		return err
	}
	info, err := c.Create(ctx, r, func(text string) { fmt.Fprintln(g.err, "ratoon: "+escape(text)) })
	if err != nil {
		return err
	}
	return g.print(info, func(w io.Writer) { fmt.Fprintln(w, info.ID) })
}

func newList(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sandboxes",
		Args:  arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.admin(cmd.Context())
			if err != nil {
				return err
			}
			all, err := c.Sandboxes(cmd.Context())
			if err != nil {
				return err
			}
			return g.print(all, func(w io.Writer) {
				fmt.Fprintln(w, "SANDBOX\tNAME\tSTATE\tMACHINES\tMEMORY\tCPUS")
				for _, s := range all {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\n", s.ID, line(s.Name), s.State, s.Live, size(s.MemoryBytes), s.CPUs)
				}
			})
		},
	}
	outputFlag(cmd, g)
	return cmd
}

func newShow(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show SANDBOX",
		Short: "Show one sandbox and its programs",
		Args:  arguments(cobra.ExactArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.showSandbox(cmd.Context(), args[0]) },
	}
	outputFlag(cmd, g)
	return cmd
}

// shown is what `sandbox show -o json` prints.
type shown struct {
	daemon.Info
	Execs []daemon.Exec `json:"execs"`
}

func (g *global) showSandbox(ctx context.Context, name string) error {
	c, err := g.admin(ctx)
	if err != nil {
		return err
	}
	info, err := c.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	execs, err := c.Execs(ctx, name)
	if err != nil {
		return err
	}
	return g.print(shown{info, execs}, func(w io.Writer) {
		fmt.Fprintf(w, "id\t%s\nname\t%s\nstate\t%s\n", info.ID, line(info.Name), info.State)
		if info.Reason != nil {
			fmt.Fprintf(w, "reason\t%s\n", line(info.Reason.Message))
		}
		fmt.Fprintf(w, "machines\t%d\nmemory\t%s each\ncpus\t%d each\n", info.Live, size(info.MemoryBytes), info.CPUs)
		if len(execs) > 0 {
			fmt.Fprintln(w, "\nEXEC\tNODE\tSTATE\tSTATUS\tCOMMAND")
		}
		for _, e := range execs {
			status := "-"
			if e.Exit != nil && e.Exit.Error == nil {
				status = fmt.Sprint(e.Exit.Status)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", e.ID, line(e.Node), e.State, status, line(commandLine(e.Argv)))
		}
	})
}

func commandLine(argv []string) string {
	const most = 60
	s := ""
	for i, a := range argv {
		if i > 0 {
			s += " "
		}
		s += a
	}
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

func newRemove(g *global) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:   "rm SANDBOX...",
		Short: "Remove sandboxes with their checkpoints and logs",
		Args:  arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.admin(cmd.Context())
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range args {
				errs = append(errs, c.Remove(cmd.Context(), name, force))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also such that are running")
	return cmd
}
