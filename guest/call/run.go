package call

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/protocol"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInterrupted = 3
	ExitUnavailable = 4
	ExitNothing     = 5
)

// Usage is the text of --help.
const Usage = `usage: agentd call [options] CALL [call options] [arguments]

Calls of a program inside a Ratoon guest, for shells.

  snapshot [--label L] [--durable]       checkpoint this machine
  restore [--payload JSON] [--drop-present] [--detach] ID
                                         end this timeline, go on at a checkpoint
  branch [--payloads JSON] [--labels JSON] [--env JSON] [--at ID] [--max-live N]
         [--min-ok N] [--timeout D] N    fork this machine into N children; JSON
                                         is an array with one element per child
  finish [--keep] [RESULT]               deliver a result (JSON) and end this child
  results [--have 0,2] [--timeout D] BRANCH
                                         wait for more children of a branch
  cancel BRANCH I                        end child I
  adopt [--payload JSON] BRANCH I        end this timeline, go on in child I
  discard BRANCH                         forget the kept checkpoints of a branch
  llm-query [--model M] [PROMPT]         ask the model; without PROMPT: standard input
  tree | whoami | budget | sync          show; sync waits for stable storage

options:
  --format json|env   one JSON value (default), or NAME=value lines for eval
  --watch PID         whose end ends a child made by this call (default: the
                      process that runs this command)
  --socket PATH       of the agent

RESULT and payloads are JSON. In a pipeline or subshell the process that runs
this command is not the script: say --watch $$ there. A timeout D is like 90s.

  eval "$(agentd call --format env branch 3)"
  if [ -n "$RATOON_INDEX" ]; then agentd call finish "$RATOON_INDEX"; fi

exit codes:
  0  done
  1  refused or failed; standard error has code, message and remedy
  2  wrong usage
  3  this machine is a copy made while the call was pending; call again
  4  the agent cannot be reached, or was restarted while the call was pending
  5  results: the timeout passed and there are none
`

// IO is what a call reads and writes.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
}

// options stand before the name of the call.
type options struct {
	format, socket string
	watch          int
}

// session is one run.
type session struct {
	IO
	opt    options
	client *client.Client
}

// command is one call: flags are added to fs and run gets what is left.
type command func(fs *flag.FlagSet) func(ctx context.Context, s *session, args []string) error

func commands() map[string]command {
	return map[string]command{
		"snapshot": snapshot, "restore": restore, "branch": branch, "finish": finish,
		"results": results, "cancel": cancelChild, "adopt": adopt, "discard": discard,
		"llm-query": llmQuery, "tree": tree, "whoami": whoami, "budget": budget, "sync": syncCall,
	}
}

// errUsage is a mistake in the arguments.
type errUsage struct{ error }

func usage(format string, args ...any) error { return errUsage{fmt.Errorf(format, args...)} }

// errNothing: no results in time.
var errNothing = errors.New("no results before the timeout")

// Run makes the call that args name and returns the exit code.
func Run(ctx context.Context, args []string, std IO) int {
	err := run(ctx, args, std)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(std.Out, Usage)
		return ExitOK
	}
	return report(std.Err, err)
}

func run(ctx context.Context, args []string, std IO) error {
	s := &session{IO: std}
	fs := newFlags("call")
	fs.StringVar(&s.opt.format, "format", formatJSON, "")
	fs.StringVar(&s.opt.socket, "socket", protocol.GuestSocket, "")
	fs.IntVar(&s.opt.watch, "watch", os.Getppid(), "")
	if err := parse(fs, args); err != nil {
		return err
	}
	if s.opt.format != formatJSON && s.opt.format != formatEnv {
		return usage("--format %s: want %s or %s", s.opt.format, formatJSON, formatEnv)
	}
	if fs.NArg() == 0 {
		return usage("which call? see agentd call --help")
	}
	make, ok := commands()[fs.Arg(0)]
	if !ok {
		return usage("there is no call %q; see agentd call --help", fs.Arg(0))
	}
	callFlags := newFlags(fs.Arg(0))
	do := make(callFlags)
	if err := parse(callFlags, fs.Args()[1:]); err != nil {
		return err
	}
	s.client = client.New(client.Options{Socket: s.opt.socket, Watch: s.opt.watch})
	defer s.client.Close()
	return do(ctx, s, callFlags.Args())
}

func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

func parse(fs *flag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return usage("%s: %w", fs.Name(), err)
	}
	return err
}

func report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	if bad, ok := errors.AsType[errUsage](err); ok {
		fmt.Fprintf(w, "agentd: %v\n", bad.error)
		return ExitUsage
	}
	if errors.Is(err, errNothing) {
		fmt.Fprintf(w, "agentd: %v\n", err)
		return ExitNothing
	}
	e := protocol.AsError(err)
	fmt.Fprintf(w, "agentd: %s: %s\n", e.Code, e.Message)
	if remedy := e.Code.Remedy(); remedy != "" {
		fmt.Fprintf(w, "agentd: %s\n", remedy)
	}
	switch e.Code {
	case protocol.CodeInterruptedByFork:
		return ExitInterrupted
	case protocol.CodeUnavailable, protocol.CodeAgentRestarted:
		return ExitUnavailable
	}
	return ExitFailed
}

// want checks the number of arguments.
func want(args []string, names ...string) error {
	if len(args) != len(names) {
		return usage("want %d arguments (%s), not %d", len(names), strings.Join(names, " "), len(args))
	}
	return nil
}

// within bounds ctx; 0 means no bound.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
