package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// deadline ends a run that hangs. It is far from what any run needs.
const deadline = 6 * time.Minute

// repository is the root of the module.
func repository() string {
	dir, err := filepath.Abs("..")
	if err != nil {
		panic(err)
	}
	return dir
}

// command is the path of the built ratoon.
func command(t testing.TB) string {
	t.Helper()
	path := os.Getenv("RATOON_BIN")
	if path == "" {
		path = filepath.Join(repository(), "bin", "ratoon")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not built: run `make build`", path)
	}
	return path
}

// stateDir is where the runs of these tests keep images and checkpoints.
func stateDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("RATOON_STATE_DIR")
	if dir == "" {
		dir = filepath.Join(repository(), ".cache", "state")
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// long tells whether the long matrices are wanted.
func long() bool { return os.Getenv("RATOON_TEST_LONG") != "" }

// options of one command line.
type options struct {
	stdin string
	input io.Reader // instead of stdin
	state string    // "": the shared one
	env   []string  // added to the environment
	args  []string  // the whole command line instead of "run"
	flags []string  // of `ratoon run`, before --
	// command is another binary, or the same one elsewhere.
	command string
	wrap    []string // runs the command
	user    *syscall.Credential
}

// result is how a command ended.
type result struct {
	stdout, stderr string
	status         int // -1: killed by signal
	signal         syscall.Signal
}

// running is a command that was started.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{}
	late           atomic.Bool // ended by the deadline
	cancel         context.CancelFunc
	err            error
}

// output collects what a process writes and tells who waits for it.
type output struct {
	mu      sync.Mutex // guards what follows
	buf     bytes.Buffer
	changed chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// await returns what was written once it holds text; false when done is
// closed before.
func (o *output) await(text string, done <-chan struct{}) (string, bool) {
	for {
		o.mu.Lock()
		s, changed := o.buf.String(), o.changed
		o.mu.Unlock()
		if strings.Contains(s, text) {
			return s, true
		}
		select {
		case <-changed:
		case <-done:
			s := o.String()
			return s, strings.Contains(s, text)
		}
	}
}

var warmed sync.Map // state directories to *sync.Once

// warm makes a first run, so that others need not build an image and boot a
// template, and say so.
func warm(t testing.TB, state string) {
	t.Helper()
	once, _ := warmed.LoadOrStore(state, &sync.Once{})
	once.(*sync.Once).Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		cmd := exec.CommandContext(ctx, command(t), "run", "--", "true")
		cmd.Env = append(os.Environ(), "RATOON_STATE_DIR="+state)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("ratoon run -- true: %v\n%s", err, out)
		}
	})
}

// start starts `ratoon run FLAGS -- ARGV`, or another command line. It is
// killed when the test ends.
func start(t testing.TB, o options, argv ...string) *running {
	t.Helper()
	args := o.args
	if args == nil {
		args = append(append([]string{"run"}, o.flags...), "--")
		args = append(args, argv...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	program := o.command
	if program == "" {
		program = command(t)
	}
	if len(o.wrap) > 0 {
		args = slices.Concat(o.wrap[1:], []string{program}, args)
		program = o.wrap[0]
	}
	r := &running{cmd: exec.CommandContext(ctx, program, args...), cancel: cancel, done: make(chan struct{}),
		stdout: &output{changed: make(chan struct{})}, stderr: &output{changed: make(chan struct{})}}
	if o.state == "" {
		o.state = stateDir(t)
		warm(t, o.state)
	}
	r.cmd.Env = append(append(os.Environ(), "RATOON_STATE_DIR="+o.state), o.env...)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = strings.NewReader(o.stdin), r.stdout, r.stderr
	if o.input != nil {
		r.cmd.Stdin = o.input
	}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.user, Setpgid: true}
	r.cmd.WaitDelay = 10 * time.Second
	if err := r.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		r.err = r.cmd.Wait()
		r.late.Store(errors.Is(ctx.Err(), context.DeadlineExceeded))
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// wait returns how the command ended.
func (r *running) wait(t testing.TB) result {
	t.Helper()
	<-r.done
	if r.late.Load() {
		t.Errorf("the run was ended after %v", deadline)
	}
	res := result{stdout: r.stdout.String(), stderr: r.stderr.String()}
	if exit, ok := errors.AsType[*exec.ExitError](r.err); ok {
		res.status = exit.ExitCode()
		if st := exit.Sys().(syscall.WaitStatus); st.Signaled() {
			res.signal = st.Signal()
		}
	} else if r.err != nil {
		t.Fatalf("run %s: %v\n%s", strings.Join(r.cmd.Args, " "), r.err, res.stderr)
	}
	return res
}

// await waits until the program has printed text.
func (r *running) await(t testing.TB, text string) string {
	t.Helper()
	s, ok := r.stdout.await(text, r.done)
	if !ok {
		t.Fatalf("the run ended without printing %q\nstdout: %s\nstderr: %s", text, s, r.stderr)
	}
	return s
}

// run runs a command to its end.
func run(t testing.TB, o options, argv ...string) result {
	t.Helper()
	return start(t, o, argv...).wait(t)
}

// succeed is run for programs that end with status 0; it returns their output.
func succeed(t testing.TB, o options, argv ...string) string {
	t.Helper()
	r := run(t, o, argv...)
	if r.status != 0 || r.signal != 0 {
		t.Fatalf("status %d, signal %v\nstdout: %s\nstderr: %s", r.status, r.signal, r.stdout, r.stderr)
	}
	return r.stdout
}

// ratoon runs a command other than `ratoon run`.
func ratoon(t testing.TB, args ...string) result {
	t.Helper()
	return run(t, options{args: args})
}

// source reads a guest program.
func source(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("programs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// python is the command line of a Python program in programs/.
func python(t testing.TB, name string, args ...string) []string {
	return append([]string{"python3", "-c", source(t, name)}, args...)
}

// compiled is the Go program of the scenarios, built once.
var compiled = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ratoon-scenarios")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "p")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./programs/scenarios")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build programs/scenarios: %w\n%s", err, out)
	}
	b, err := os.ReadFile(path)
	return string(b), err
})
