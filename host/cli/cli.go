package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/image"
	"github.com/ratoon-project/ratoon/protocol"
)

// Exit statuses besides those of the program that `ratoon run` ran.
const (
	exitUsage    = 2   // a bad argument
	exitFailure  = 125 // Ratoon itself failed
	exitNotFound = 127 // the program was not found in the guest
)

const exitHelp = `Exit status:
  0        done; for run: the program's status, 128+n when signal n ended it
  2        a bad argument
  125      Ratoon failed; standard error says why and what to do
  127      run: the program was not found in the guest`

// streams are the standard streams of one command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// global are the options of every command.
type global struct {
	streams
	stateDir string
	socket   string
	output   string
	verbose  bool
}

func (g *global) log() *slog.Logger {
	level := slog.LevelWarn
	if g.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(g.err, &slog.HandlerOptions{Level: level}))
}

func (g *global) state() (*state.Dir, error) { return state.Open(g.stateDir) }

// exitError carries the status of a program that ran.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Run runs one command line and returns its exit status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return run(ctx, "ratoon", newRoot, args, streams{stdin, stdout, stderr})
}

func run(ctx context.Context, name string, command func(*global) *cobra.Command, args []string, std streams) int {
	g := &global{streams: std}
	root := command(g)
	root.SetArgs(args)
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	fmt.Fprintln(std.err, name+": "+escape(err.Error()))
	if remedy := remedyOf(err); remedy != "" {
		fmt.Fprintln(std.err, "  remedy: "+remedy)
	}
	return statusOf(err)
}

func remedyOf(err error) string {
	if _, ok := errors.AsType[*image.Error](err); ok {
		return "" // its text holds one
	}
	e, ok := errors.AsType[*protocol.Error](err)
	switch {
	case ok:
		return e.Code.Remedy()
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return protocol.CodeDiskFull.Remedy()
	case errors.Is(err, fs.ErrPermission):
		return "choose another state directory with --state-dir or " + state.Env + ", or another user"
	}
	return ""
}

func statusOf(err error) int {
	e, ok := errors.AsType[*protocol.Error](err)
	switch {
	case errors.Is(err, errUsage):
		return exitUsage
	case !ok:
		return exitFailure
	case e.Code == protocol.CodeInvalidArgument || e.Code == protocol.CodeUnknownCheckpoint || e.Code == protocol.CodeNotFound:
		return exitUsage
	default:
		return exitFailure
	}
}

var errUsage = errors.New("see --help")

func usage(format string, args ...any) error {
	return fmt.Errorf(format+" (%w)", append(args, errUsage)...)
}

func newRoot(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "ratoon",
		Short:         "Run programs that can snapshot, restore and branch their own machine",
		Long:          "Ratoon runs a program in a microVM, in which it can checkpoint, roll back and fork\nthe whole machine it runs in.\n\n" + exitHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	f := cmd.PersistentFlags()
	f.StringVar(&g.stateDir, "state-dir", "", "where checkpoints and caches are (default $"+state.Env+", /var/lib/ratoon or ~/.local/state/ratoon)")
	f.BoolVarP(&g.verbose, "verbose", "v", false, "log what is done on standard error")
	f.StringVar(&g.socket, "socket", "", "the socket of ratoond (default $"+EnvSocket+", or that of the state directory's)")
	cmd.AddCommand(newRun(g), newSandbox(g), newList(g), newExec(g), newRemove(g), newSnapshot(g), newRestore(g), newBranch(g), newTree(g),
		newCheckpoint(g), newCollect(g), newEvents(g), newDoctor(g), newVersion(g))
	return cmd
}

// arguments makes a wrong number of them a mistake in usage.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage("%s: %w", cmd.CommandPath(), err)
		}
		return nil
	}
}

// outputFlag adds -o to a command that prints data.
func outputFlag(cmd *cobra.Command, g *global) {
	cmd.Flags().StringVarP(&g.output, "output", "o", "table", "table or json")
}

// Release is the version of this build.
func Release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func newVersion(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the release and the protocol version",
		Args:  arguments(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Release  string `json:"release"`
				Protocol int    `json:"protocol"`
			}{Release(), protocol.Version}
			return g.print(v, func(w io.Writer) { fmt.Fprintf(w, "ratoon %s, protocol %d\n", v.Release, v.Protocol) })
		},
	}
	outputFlag(cmd, g)
	return cmd
}

// Main is the whole of the ratoon binary.
func Main(ctx context.Context) int {
	return Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}
