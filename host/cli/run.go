package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/llm"
	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// runOptions are the flags of `ratoon run`.
type runOptions struct {
	memory   string
	cpus     int
	timeout  time.Duration
	follow   bool
	keep     bool
	from     string
	tty      bool
	env      []string
	dir      string
	user     string
	llm      string
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

func newRun(g *global) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a program in a machine of its own, which it may snapshot, restore and branch",
		Long: `Run starts a sandbox, runs the program in it and ends it with the program. The
first run builds the guest image and boots a template; later ones start from it.

Standard input, output and the exit status are the program's. Ctrl-C interrupts
the program; a second one ends the sandbox.

` + exitHelp,
		Example: `  ratoon run -- python3 -c 'import ratoon; b = ratoon.branch(2); print(b.index)'
  ratoon run --keep -- python3 agent.py; ratoon checkpoint ls`,
		RunE: func(cmd *cobra.Command, args []string) error { return g.runProgram(cmd.Context(), o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.memory, "memory", "256M", "guest RAM of each machine")
	f.IntVar(&o.cpus, "cpus", 1, "processors of each machine")
	f.DurationVar(&o.timeout, "timeout", 0, "end the program after this time (0: never)")
	f.BoolVar(&o.follow, "follow", false, "show the children's output, each line with its node")
	f.BoolVar(&o.keep, "keep", false, "keep the checkpoints and logs after the program's end")
	f.StringVar(&o.from, "from", "", "go on from a kept checkpoint instead of starting a program")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the program a terminal")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE for the program, or NAME to pass on yours")
	f.StringVarP(&o.dir, "workdir", "w", "", "the program's directory (default /workspace)")
	f.StringVarP(&o.user, "user", "u", "", "the program's user in the guest (default root)")
	f.StringVar(&o.llm, "llm", "", "who answers llm_query: openai[:MODEL], echo, cassette:FILE, scripted:FILE")
	f.StringVar(&o.seed, "seed", "", "make the helpers' random numbers the same in every run with this seed")
	f.IntVar(&o.maxDepth, "max-depth", 0, "branches of branches (default 16)")
	f.IntVar(&o.maxWidth, "max-width", 0, "children of one branch (default 64)")
	f.IntVar(&o.maxLive, "max-live", 0, "machines running at once (default 32)")
	f.StringVar(&o.maxMem, "max-memory", "", "guest RAM of all running machines")
	f.StringVar(&o.maxDisk, "max-disk", "", "disk space of all checkpoints")
	f.Int64Var(&o.llmCalls, "llm-budget", 0, "prompts that may be sent to the model (0: no limit)")
	f.Int64Var(&o.llmToks, "llm-tokens", 0, "tokens that may be used (0: no limit)")
	f.Float64Var(&o.llmCost, "llm-cost", 0, "US dollars that may be spent on the model (0: no limit)")
	return cmd
}

// check completes the options.
func (o runOptions) check(args []string) (memory int64, limits sandbox.Limits, err error) {
	if len(args) == 0 && o.from == "" {
		return 0, limits, usage("run: want a command after --")
	}
	if len(args) > 0 && o.from != "" {
		return 0, limits, usage("run --from goes on with the program in the checkpoint; it takes no command")
	}
	limits = sandbox.Limits{Depth: o.maxDepth, Width: o.maxWidth, Live: o.maxLive, LLMCalls: o.llmCalls, LLMTokens: o.llmToks, LLMCost: int64(o.llmCost * 1e6)}
	if o.maxDepth < 0 || o.maxWidth < 0 || o.maxLive < 0 || o.llmCalls < 0 || o.llmToks < 0 || o.llmCost < 0 || o.cpus < 1 || o.timeout < 0 {
		return 0, limits, usage("run: limits are not negative, and --cpus is at least 1")
	}
	if memory, err = parseSize(o.memory); err != nil {
		return 0, limits, err
	}
	if memory < 128<<20 || memory%(1<<20) != 0 {
		return 0, limits, usage("--memory %s: want at least 128M, in whole MiB", line(o.memory))
	}
	if o.maxMem != "" {
		if limits.Memory, err = parseSize(o.maxMem); err != nil {
			return 0, limits, err
		}
	}
	if o.maxDisk != "" {
		limits.Disk, err = parseSize(o.maxDisk)
	}
	return memory, limits, err
}

func (o runOptions) spec(args []string) (*protocol.ExecSpec, error) {
	if o.from != "" {
		return nil, nil
	}
	env, err := environment(o.env)
	if err != nil {
		return nil, err
	}
	return &protocol.ExecSpec{Argv: args, Env: env, Dir: o.dir, User: o.user, TTY: o.tty, Stdin: true, Timeout: int64(o.timeout)}, nil
}

func (g *global) runProgram(ctx context.Context, o runOptions, args []string) error {
	memory, limits, err := o.check(args)
	if err != nil {
		return err
	}
	spec, err := o.spec(args)
	if err != nil {
		return err
	}
	broker, err := openModels(o.llm)
	if err != nil {
		return err
	}
	ctx, interrupts := interruptible(ctx)
	defer interrupts.stop()
	p, err := openPrivate(ctx, g, memory, o.cpus)
	if err != nil {
		return err
	}
	r := &running{global: g, private: p, options: o, spec: spec, interrupts: interrupts}
	status, err := r.start(ctx, broker, sandbox.Spec{MemoryBytes: memory, Limits: limits, Seed: []byte(o.seed)})
	if err := p.close(o.keep); err != nil {
		p.log.Error("close host", "error", err)
	}
	if err != nil {
		return err
	}
	if status != 0 {
		return exitError(status)
	}
	return nil
}

// running is one `ratoon run` from the point where its host is open.
type running struct {
	*global
	*private
	options    runOptions
	spec       *protocol.ExecSpec
	interrupts *interrupts
	children   *children
}

func (r *running) start(ctx context.Context, broker *llm.Broker, spec sandbox.Spec) (int, error) {
	var err error
	if r.options.from != "" {
		spec.Template, err = r.importCheckpoint(ctx, r.options.from)
	} else {
		spec.Template, err = r.kind.Template(ctx, func(stage string) { fmt.Fprintln(r.err, "ratoon: "+stage) })
	}
	if err != nil {
		return 0, err
	}
	r.children = newChildren(r.files.Logs(), r.options.follow, r.out, r.err)
	first := make(chan program.Line, 1)
	lines := program.NewLines(func(l program.Line) {
		if l.Node == "0" {
			first <- l
			return
		}
		r.children.start(l)
	})
	r.children.lines = lines
	id := protocol.NewSandboxID()
	deps := sandbox.Deps{Machines: r.kind, Checkpoints: r.kind.Checkpoints(id, spec.Template), Observe: lines.Observe, Log: r.private.log}
	if broker != nil {
		deps.Models = models{broker}
	}
	deps.Journal = r.files.Journal.Sandbox(id)
	sb, err := sandbox.Start(ctx, deps, id, spec)
	if err != nil {
		return 0, err
	}
	defer r.children.stop() // after the sandbox, whose end is theirs
	defer sb.Close()
	lines.Use(sb)
	stop, err := serve(r.files.Socket(), sb)
	if err != nil {
		return 0, errors.Join(err, end(sb, nil))
	}
	defer stop()
	return r.follow(ctx, sb, lines, <-first)
}

// follow runs the program to its end and ends the sandbox with it.
func (r *running) follow(ctx context.Context, sb *sandbox.Sandbox, lines *program.Lines, first program.Line) (int, error) {
	o := program.Options{Spec: r.spec, Stdin: r.in, Stdout: r.out, Stderr: r.err}
	if r.spec == nil {
		if len(first.Execs) == 0 {
			return 0, errors.Join(protocol.Errorf(protocol.CodeInvalidArgument, "no program runs in checkpoint %s", r.options.from), end(sb, nil))
		}
		o.ID, o.From = first.Execs[0].ID, first.Execs[0]
	}
	if r.options.tty {
		restore, err := rawTerminal(r.in)
		if err != nil {
			return 0, errors.Join(err, end(sb, nil))
		}
		defer restore()
	}
	p := program.New(o)
	r.interrupts.to(p)
	if r.options.tty {
		defer watchSize(r.in, p)()
	}
	exit, err := p.Follow(ctx, lines.Source(first.ID, p.ID()))
	if err == nil {
		status := exit.Status.Shell(signalNumber(exit.Status.Signal))
		if exit.TimedOut {
			fmt.Fprintf(r.err, "ratoon: the program was ended after %v\n", r.options.timeout)
			status = 124
		}
		return status, end(sb, nil)
	}
	if protocol.CodeOf(err) == protocol.CodeSandboxStopped {
		select {
		case <-sb.Ended(): // finish() by the first line is a good end
			if reason := sb.Reason(); reason != nil {
				return 0, reason
			}
			return 0, nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	ended := end(sb, protocol.AsError(err))
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Code == protocol.CodeNotFound {
		fmt.Fprintln(r.err, "ratoon: "+escape(e.Message))
		return exitNotFound, ended
	}
	return 0, errors.Join(err, ended)
}

// endWait bounds the wait for the record of an end.
const endWait = 10 * time.Second

// end ends the sandbox. On a full disk its end cannot be recorded; the next
// run then finds it as that of a host that was killed.
func end(sb *sandbox.Sandbox, reason *protocol.Error) error {
	late := time.AfterFunc(endWait, sb.Close)
	err := sb.End(reason)
	if !late.Stop() && err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the end of the sandbox could not be recorded within %v: %v", endWait, err)
	}
	return err
}

func signalNumber(name string) int { return int(unix.SignalNum(name)) }

// interrupts passes Ctrl-C and its like to the program; the second one ends
// everything.
type interrupts struct {
	signals chan os.Signal
	pipes   chan os.Signal // not read: a write to a closed pipe fails, and is cleaned up after
	cancel  context.CancelCauseFunc
	program chan *program.Program
	all     sync.WaitGroup
}

func interruptible(ctx context.Context) (context.Context, *interrupts) {
	ctx, cancel := context.WithCancelCause(ctx)
	i := &interrupts{signals: make(chan os.Signal, 4), pipes: make(chan os.Signal, 1), cancel: cancel, program: make(chan *program.Program)}
	signal.Notify(i.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	signal.Notify(i.pipes, syscall.SIGPIPE)
	i.all.Go(i.pass)
	return ctx, i
}

func (i *interrupts) pass() {
	var p *program.Program
	sent := 0
	for {
		select {
		case p = <-i.program:
		case s, ok := <-i.signals:
			if !ok {
				return
			}
			sent++
			name := unix.SignalName(s.(syscall.Signal))
			if p == nil || sent > 1 {
				i.cancel(protocol.Errorf(protocol.CodeCancelled, "ended by %s", name))
				continue
			}
			i.all.Go(func() { p.Signal(name) }) // may wait for the guest; the next one must not
		}
	}
}

func (i *interrupts) to(p *program.Program) { i.program <- p }

func (i *interrupts) stop() {
	signal.Stop(i.signals)
	signal.Stop(i.pipes)
	close(i.signals)
	i.all.Wait()
	i.cancel(nil)
}

// importCheckpoint finds a kept checkpoint in any run and takes it into this
// one.
func (r *running) importCheckpoint(ctx context.Context, name string) (protocol.CheckpointID, error) {
	id, err := protocol.ParseCheckpointID(name)
	if err != nil {
		return "", err
	}
	paths, err := r.dir.Paths()
	if err != nil {
		return "", err
	}
	for _, path := range append(paths, r.dir.DaemonPath()) {
		if _, err := os.Stat(path); err != nil || path == r.files.Path {
			continue
		}
		found, err := r.kind.Import(ctx, path, id)
		if err != nil {
			return "", err
		}
		if found {
			return id, nil
		}
	}
	return "", protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s under %s", id, r.dir.Path())
}
