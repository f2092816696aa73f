package daemon

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/spool"
	"github.com/ratoon-project/ratoon/protocol"
)

// execKey names a program in a line: children have their parent's programs.
type execKey struct {
	line protocol.LineID
	id   protocol.ExecID
}

// exec is a program that is followed, or whose output is read.
type exec struct {
	record         execRecord // guarded by Sandbox.mu
	program        *program.Program
	stdout, stderr *spool.Spool
	stdin          *stdin        // nil: at its end
	done           chan struct{} // closed when record says how it ended, or the line went
	interrupted    *protocol.Error
}

// Command is a program to run.
type Command struct {
	Node string // "": the first line
	Spec protocol.ExecSpec
}

// Exec starts a program in the timeline that holds the node now. It returns
// when that is recorded: whether the program could be started is told by
// Attach and Execs.
func (s *Sandbox) Exec(c Command) (Exec, error) {
	sb, lines, err := s.running()
	if err != nil {
		return Exec{}, err
	}
	if len(c.Spec.Argv) == 0 {
		return Exec{}, protocol.Errorf(protocol.CodeInvalidArgument, "no command: argv is empty")
	}
	line, node, err := s.lineAt(sb, c.Node)
	if err != nil {
		return Exec{}, err
	}
	r := execRecord{ID: protocol.NewExecID(), Line: line, Node: node, Argv: c.Spec.Argv, TTY: c.Spec.TTY, Stdin: c.Spec.Stdin, Started: time.Now().UTC()}
	e, err := s.openExec(r)
	if err != nil {
		return Exec{}, err
	}
	if err := s.put("daemon.exec", tableExec, execKey{line, r.ID}.String(), r); err != nil {
		return Exec{}, errors.Join(err, e.close())
	}
	o := program.Options{ID: r.ID, Spec: &c.Spec, Stdout: e.stdout, Stderr: e.stderr}
	if c.Spec.Stdin {
		e.stdin = newStdin()
		o.Stdin = e.stdin
	}
	s.d.emit(Event{Kind: EventExecStarted, Sandbox: s.id, Node: node, Line: line, Exec: r.ID})
	if !s.follow(e, lines, o) {
		return Exec{}, errDown
	}
	return s.describe(e), nil
}

// lineAt finds the line of a node.
func (s *Sandbox) lineAt(sb *sandbox.Sandbox, node string) (protocol.LineID, string, error) {
	if node == "" {
		node = "0"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	line, ok := s.nodes[node]
	if !ok {
		return "", "", protocol.Errorf(protocol.CodeNotFound, "sandbox %s has no running node %q", s.id, clip(node))
	}
	return line, node, nil
}

func (s *Sandbox) output(k execKey) string {
	return filepath.Join(s.d.files.Logs(), string(s.id), string(k.line), string(k.id))
}

// openExec opens the output of a program.
func (s *Sandbox) openExec(r execRecord) (*exec, error) {
	e := &exec{record: r, done: make(chan struct{})}
	dir := s.output(execKey{r.Line, r.ID})
	o := spool.Options{Limit: s.d.options.Limits.OutputBytes, Sealed: r.over()}
	var err error
	if e.stdout, err = spool.Open(filepath.Join(dir, "stdout"), o); err != nil {
		return nil, err
	}
	if e.stderr, err = spool.Open(filepath.Join(dir, "stderr"), o); err != nil {
		return nil, errors.Join(err, e.stdout.Seal())
	}
	if r.over() {
		close(e.done)
	}
	return e, nil
}

// close lets readers of the output end.
func (e *exec) close() error { return errors.Join(e.stdout.Seal(), e.stderr.Seal()) }

// follow follows a program until it or its line ends. It is false when the
// daemon is going down.
func (s *Sandbox) follow(e *exec, lines *program.Lines, o program.Options) bool {
	e.program = program.New(o)
	k := execKey{e.record.Line, e.record.ID}
	s.mu.Lock()
	s.execs[k] = e
	s.mu.Unlock()
	return s.d.task(func() {
		exit, err := e.program.Follow(s.d.ctx, lines.Source(k.line, k.id))
		s.ended(e, exit, err)
	})
}

// ended records how a program ended. One whose line has no machine any more
// may go on with the line: its record stays open.
func (s *Sandbox) ended(e *exec, exit *protocol.ExecExit, err error) {
	s.mu.Lock()
	r := e.record
	s.mu.Unlock()
	r.Exit, r.Ended = exit, time.Now().UTC()
	if exit == nil && protocol.CodeOf(err) != protocol.CodeSandboxStopped && s.d.ctx.Err() == nil {
		r.Reason = protocol.AsError(err)
	}
	if r.over() {
		if err := s.put("daemon.exec.ended", tableExec, execKey{r.Line, r.ID}.String(), r); err != nil {
			s.d.log.Error("record the end of a program", "sandbox", s.id, "exec", r.ID, "error", err)
		}
	}
	s.mu.Lock()
	e.record = r
	if !r.over() {
		e.interrupted = protocol.AsError(err)
		delete(s.execs, execKey{r.Line, r.ID})
	}
	s.mu.Unlock()
	if err := e.close(); err != nil {
		s.d.log.Error("close output", "sandbox", s.id, "exec", r.ID, "error", err)
	}
	if e.stdin != nil {
		e.stdin.close()
	}
	close(e.done)
	s.d.emit(Event{Kind: EventExecEnded, Sandbox: s.id, Node: r.Node, Line: r.Line, Exec: r.ID, Error: r.Reason})
}

// carryOn follows the programs that run in a line that has come (back) to
// life and that nobody follows.
func (s *Sandbox) carryOn(lines *program.Lines, ev sandbox.Event) {
	for _, at := range ev.Execs {
		k := execKey{ev.Line, at.ID}
		s.mu.Lock()
		e := s.execs[k]
		s.mu.Unlock()
		if e != nil && !e.record.over() {
			continue
		}
		if err := s.carry(lines, ev, k, at); err != nil {
			s.d.log.Error("follow a program", "sandbox", s.id, "exec", at.ID, "error", err)
		}
	}
}

func (s *Sandbox) carry(lines *program.Lines, ev sandbox.Event, k execKey, at protocol.ExecOffsets) error {
	r, err := s.recordOf(k)
	if err != nil {
		return err
	}
	r.Node, r.Exit, r.Reason, r.Ended = ev.Node, nil, nil, time.Time{}
	e, err := s.openExec(r)
	if err != nil {
		return err
	}
	if r.Timeline == ev.Timeline { // the same one goes on: after what is in the spools
		at.Stdout = r.From.Stdout + uint64(e.stdout.End()) - r.At.Stdout
		at.Stderr = r.From.Stderr + uint64(e.stderr.End()) - r.At.Stderr
	}
	e.record.Timeline, e.record.From = ev.Timeline, at
	e.record.At = protocol.ExecOffsets{ID: at.ID, Stdout: uint64(e.stdout.End()), Stderr: uint64(e.stderr.End())}
	if err := s.put("daemon.exec", tableExec, k.String(), e.record); err != nil {
		return errors.Join(err, e.close())
	}
	s.follow(e, lines, program.Options{ID: k.id, From: at, Stdout: e.stdout, Stderr: e.stderr})
	return nil
}

// recordOf is what is known of a program in a line: of a new line, what its
// parent's is.
func (s *Sandbox) recordOf(k execKey) (execRecord, error) {
	all, err := s.execRecords()
	if err != nil {
		return execRecord{}, err
	}
	out := execRecord{ID: k.id, Line: k.line, Argv: []string{}, Started: time.Now().UTC()}
	for _, r := range all {
		if r.ID == k.id && r.Line == k.line {
			return r, nil
		}
		if r.ID == k.id {
			out.Argv, out.TTY, out.Started = r.Argv, r.TTY, r.Started
		}
	}
	return out, nil
}

// Exec is a program as it is shown.
type Exec struct {
	ID      protocol.ExecID `json:"id"`
	Node    string          `json:"node"`
	Argv    []string        `json:"argv"`
	TTY     bool            `json:"tty"`
	State   string          `json:"state"` // running, exited, ended
	Started time.Time       `json:"started"`
	Ended   time.Time       `json:"ended,omitzero"`
	Exit    *Ending         `json:"exit,omitempty"`
	// Stdout and Stderr are how many bytes of output there were.
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// Ending is how a program ended.
type Ending struct {
	// Status is what a shell would say: 128+n for signal n, 124 after the
	// timeout. -1 when Error says why there is none.
	Status   int             `json:"status"`
	Signal   string          `json:"signal,omitempty"`
	TimedOut bool            `json:"timed_out,omitempty"`
	Error    *protocol.Error `json:"error,omitempty"`
}

func (s *Sandbox) describe(e *exec) Exec {
	s.mu.Lock()
	r := e.record
	s.mu.Unlock()
	out := Exec{ID: r.ID, Node: r.Node, Argv: r.Argv, TTY: r.TTY, State: "running", Started: r.Started, Ended: r.Ended,
		Stdout: e.stdout.End(), Stderr: e.stderr.End(), Exit: r.ending()}
	switch {
	case r.Exit != nil:
		out.State = "exited"
	case r.Reason != nil:
		out.State = "ended"
	}
	return out
}

// Execs lists the programs, oldest first.
func (s *Sandbox) Execs() ([]Exec, error) {
	all, err := s.execRecords()
	if err != nil {
		return nil, err
	}
	out := make([]Exec, 0, len(all))
	for _, r := range all {
		e, err := s.exec(execKey{r.Line, r.ID}, r)
		if err != nil {
			return nil, err
		}
		out = append(out, s.describe(e))
	}
	slices.SortFunc(out, func(a, b Exec) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID)) })
	return out, nil
}

// exec is the one that is followed, or one to read its output.
func (s *Sandbox) exec(k execKey, r execRecord) (*exec, error) {
	s.mu.Lock()
	e := s.execs[k]
	s.mu.Unlock()
	if e != nil {
		return e, nil
	}
	e, err := s.openExec(r)
	if err == nil && !r.over() {
		// Its line has no machine now.
		e.interrupted = protocol.Errorf(protocol.CodeSandboxStopped, "its machine does not run")
		close(e.done)
		err = e.close()
	}
	return e, err
}

// find finds a program by id in a node; "" is the only node that has it, or
// the first line.
func (s *Sandbox) find(id protocol.ExecID, node string) (*exec, error) {
	all, err := s.execRecords()
	if err != nil {
		return nil, err
	}
	var found []execRecord
	for _, r := range all {
		if r.ID == id && (node == "" || r.Node == node) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b execRecord) int {
		return cmp.Or(cmp.Compare(len(a.Node), len(b.Node)), cmp.Compare(a.Node, b.Node))
	})
	if len(found) == 0 {
		return nil, protocol.Errorf(protocol.CodeNotFound, "no program %s in sandbox %s", id, s.id)
	}
	return s.exec(execKey{found[0].Line, id}, found[0])
}

// HasExec answers CodeNotFound when there is no such program.
func (s *Sandbox) HasExec(id protocol.ExecID, node string) error {
	_, err := s.find(id, node)
	return err
}

func (e *exec) wait(ctx context.Context) error {
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
