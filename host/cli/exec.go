package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/protocol"
)

// execOptions are the flags of `ratoon exec`.
type execOptions struct {
	node    string
	tty     bool
	detach  bool
	noStdin bool
	env     []string
	dir     string
	user    string
	timeout time.Duration
}

func newExec(g *global) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:   "exec SANDBOX [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a program in a sandbox",
		Long: `Exec runs a program in a sandbox and passes on its standard streams, signals and
exit status. A program goes on when this command is ended by SIGHUP or its
connection is lost: ratoon sandbox attach finds it again.

` + exitHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return usage("exec: want SANDBOX, -- and a command")
			}
			return g.exec(cmd.Context(), o, args[0], args[1:])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "the node of the tree (default: the first line)")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the program a terminal")
	f.BoolVarP(&o.detach, "detach", "d", false, "print the program's id and do not wait for it")
	f.BoolVar(&o.noStdin, "no-stdin", false, "put its standard input at its end")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE for the program, or NAME to pass on yours")
	f.StringVarP(&o.dir, "workdir", "w", "", "the program's directory (default /workspace)")
	f.StringVarP(&o.user, "user", "u", "", "the program's user in the guest (default root)")
	f.DurationVar(&o.timeout, "timeout", 0, "end the program after this time (0: never)")
	return cmd
}

func (g *global) exec(ctx context.Context, o execOptions, sandbox string, argv []string) error {
	env, err := environment(o.env)
	if err != nil {
		return err
	}
	c, err := g.admin(ctx)
	if err != nil {
		return err
	}
	r := admin.StartExec{Node: o.node, Argv: argv, Env: env, Dir: o.dir, User: o.user, TTY: o.tty, Stdin: !o.noStdin && !o.detach, Timeout: o.timeout.Seconds()}
	if o.tty && !o.detach {
		restore, err := rawTerminal(g.in)
		if err != nil {
			return err
		}
		defer restore()
		if columns, rows, err := term.GetSize(int(g.in.(*os.File).Fd())); err == nil {
			r.Rows, r.Columns = uint16(rows), uint16(columns)
		}
	}
	e, err := c.Exec(ctx, sandbox, r)
	if err != nil {
		return err
	}
	if o.detach {
		fmt.Fprintln(g.out, e.ID)
		return nil
	}
	a := &attached{global: g, client: c, sandbox: sandbox, exec: e.ID, node: e.Node, tty: o.tty, stdin: r.Stdin}
	return a.follow(ctx)
}

func environment(flags []string) (map[string]string, error) {
	env := map[string]string{}
	for _, e := range flags {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			value = os.Getenv(name)
		}
		if name == "" {
			return nil, usage("--env %s: want NAME=VALUE or NAME", line(e))
		}
		env[name] = value
	}
	return env, nil
}

func newAttach(g *global) *cobra.Command {
	node := ""
	cmd := &cobra.Command{
		Use:   "attach SANDBOX EXEC",
		Short: "Follow a program that runs, with all of its output that is kept",
		Args:  arguments(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := protocol.ParseExecID(args[1])
			if err != nil {
				return err
			}
			c, err := g.admin(cmd.Context())
			if err != nil {
				return err
			}
			a := &attached{global: g, client: c, sandbox: args[0], exec: id, node: node}
			return a.follow(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the node of the tree (default: the first that has the program)")
	return cmd
}

// attached follows one program.
type attached struct {
	*global
	client  *admin.Client
	sandbox string
	exec    protocol.ExecID
	node    string
	tty     bool
	stdin   bool
	at      [2]int64 // offsets of what was passed on
}

// attachWait is for how long a lost daemon is waited for.
const attachWait = 30 * time.Second

func (a *attached) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGWINCH)
	defer signal.Stop(signals)
	go a.pass(ctx, cancel, signals)
	if a.stdin {
		go a.client.Input(ctx, a.sandbox, a.exec, a.node, a.in) // a program that reads no more ends it
	}
	end, err := a.output(ctx)
	if err != nil {
		return err
	}
	if end.Error != nil {
		if end.Error.Code == protocol.CodeNotFound {
			fmt.Fprintln(a.err, "ratoon: "+escape(end.Error.Message))
			return exitError(exitNotFound)
		}
		return end.Error
	}
	if end.Status != 0 {
		return exitError(end.Status)
	}
	return nil
}

// output passes output on until the program ends; over the loss of a daemon
// that comes back.
func (a *attached) output(ctx context.Context) (*daemon.Ending, error) {
	wait, lost := 10*time.Millisecond, time.Time{}
	for {
		end, err := a.client.Output(ctx, a.sandbox, daemon.Attachment{Exec: a.exec, Node: a.node, Stdout: a.at[0], Stderr: a.at[1], Follow: true}, func(o daemon.Output) error {
			lost, wait = time.Time{}, 10*time.Millisecond
			return a.show(o)
		})
		if err == nil && end == nil {
			err = protocol.Errorf(protocol.CodeInternal, "the stream of a running program ended")
		}
		if err == nil || protocol.CodeOf(err) != protocol.CodeUnavailable {
			return end, err
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if time.Since(lost) > attachWait {
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		wait = min(2*wait, time.Second)
	}
}

func (a *attached) show(o daemon.Output) error {
	to, at := a.out, &a.at[0]
	if o.Stream == "stderr" {
		to, at = a.err, &a.at[1]
	}
	if missing := o.Offset - *at; missing > 0 {
		fmt.Fprintf(a.err, "ratoon: %d bytes of %s are no longer kept\n", missing, o.Stream)
	}
	*at = o.Offset + int64(len(o.Data))
	if _, err := to.Write(o.Data); err != nil {
		return protocol.Errorf(protocol.CodeCancelled, "write %s: %v", o.Stream, err)
	}
	return nil
}

// pass passes signals on; a second Ctrl-C gives up waiting for the program.
func (a *attached) pass(ctx context.Context, cancel context.CancelCauseFunc, signals <-chan os.Signal) {
	sent := 0
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			if s == syscall.SIGWINCH {
				a.resize(ctx)
				continue
			}
			name := unix.SignalName(s.(syscall.Signal))
			sent++
			if s == syscall.SIGHUP || sent > 1 {
				cancel(protocol.Errorf(protocol.CodeCancelled, "left by %s; the program goes on as %s", name, a.exec))
				return
			}
			if err := a.client.Signal(ctx, a.sandbox, a.exec, a.node, name); err != nil {
				fmt.Fprintf(a.err, "ratoon: send %s: %s\n", name, line(err.Error()))
			}
		}
	}
}

func (a *attached) resize(ctx context.Context) {
	f, ok := a.in.(*os.File)
	if !ok || !a.tty {
		return
	}
	if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
		a.client.Resize(ctx, a.sandbox, a.exec, a.node, admin.Resize{Rows: uint16(rows), Columns: uint16(columns)})
	}
}

func newLogs(g *global) *cobra.Command {
	follow, node := false, ""
	cmd := &cobra.Command{
		Use:   "logs SANDBOX [EXEC]",
		Short: "Print what programs have written, as far as it is kept",
		Args:  arguments(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := protocol.ExecID("")
			if len(args) == 2 {
				var err error
				if id, err = protocol.ParseExecID(args[1]); err != nil {
					return err
				}
			}
			return g.logs(cmd.Context(), args[0], id, node, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until the program ends")
	cmd.Flags().StringVar(&node, "node", "", "of this node of the tree only")
	return cmd
}

// logs prints the output of one program, or of all one after the other.
func (g *global) logs(ctx context.Context, sandbox string, id protocol.ExecID, node string, follow bool) error {
	c, err := g.admin(ctx)
	if err != nil {
		return err
	}
	all, err := c.Execs(ctx, sandbox)
	if err != nil {
		return err
	}
	var errs []error
	found := false
	for _, e := range all {
		if id != "" && e.ID != id || node != "" && e.Node != node {
			continue
		}
		found = true
		a := &attached{global: g, client: c, sandbox: sandbox, exec: e.ID, node: e.Node}
		_, err := c.Output(ctx, sandbox, daemon.Attachment{Exec: e.ID, Node: e.Node, Follow: follow}, a.show)
		errs = append(errs, err)
	}
	if !found && id != "" {
		errs = append(errs, protocol.Errorf(protocol.CodeNotFound, "no program %s in sandbox %s", id, line(sandbox)))
	}
	return errors.Join(errs...)
}

func newCopy(g *global) *cobra.Command {
	node := ""
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files into a sandbox or out of it",
		Long: `Cp copies between this host and a sandbox: one of the two is SANDBOX:/PATH. What
is copied keeps its name in a DESTINATION that is a directory. SOURCE or
DESTINATION - is a tar stream on standard input or output.`,
		Example: "  ratoon sandbox cp src web:/workspace\n  ratoon sandbox cp web:/workspace/report.txt .",
		Args:    arguments(cobra.ExactArgs(2)),
		RunE:    func(cmd *cobra.Command, args []string) error { return g.copy(cmd.Context(), node, args[0], args[1]) },
	}
	cmd.Flags().StringVar(&node, "node", "", "the node of the tree (default: the first line)")
	return cmd
}

func (g *global) copy(ctx context.Context, node, from, to string) error {
	fromBox, fromPath, out := strings.Cut(from, ":")
	toBox, toPath, in := strings.Cut(to, ":")
	if in == out {
		return usage("cp: one of the two is SANDBOX:/PATH, the other a path of this host")
	}
	c, err := g.admin(ctx)
	if err != nil {
		return err
	}
	if in {
		r, done, err := g.archive(from)
		if err != nil {
			return err
		}
		return errors.Join(c.TarIn(ctx, toBox, node, toPath, r), done())
	}
	r, dir, err := c.TarOut(ctx, fromBox, node, fromPath)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == "-" {
		_, err = io.Copy(g.out, r)
		return err
	}
	name := path.Base(fromPath)
	if info, err := os.Stat(to); err != nil || !info.IsDir() {
		to, name = filepath.Split(filepath.Clean(to))
		to = filepath.Clean(to)
	}
	return unpack(r, to, name, dir)
}
