package daemon

import (
	"context"
	"sync"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Sandbox is one sandbox, with machines or without.
type Sandbox struct {
	d       *Daemon
	id      protocol.SandboxID
	journal sandbox.Journal
	// turn is held while the sandbox as a whole is started, resumed,
	// hibernated or removed.
	turn chan struct{}

	mu      sync.Mutex // guards what follows
	kind    kindRecord
	live    *sandbox.Sandbox // nil while it has no machine
	lines   *program.Lines   // of live
	nodes   map[string]protocol.LineID
	execs   map[execKey]*exec
	broken  *protocol.Error // why it could not be recovered
	removed bool
}

func (d *Daemon) newSandbox(id protocol.SandboxID) *Sandbox {
	return &Sandbox{d: d, id: id, journal: d.files.Journal.Sandbox(id), turn: make(chan struct{}, 1),
		nodes: map[string]protocol.LineID{}, execs: map[execKey]*exec{}}
}

// ID names it.
func (s *Sandbox) ID() protocol.SandboxID { return s.id }

// take waits for the turn.
func (s *Sandbox) take(ctx context.Context) (release func(), err error) {
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// running is the coordinator of a sandbox that has machines.
func (s *Sandbox) running() (*sandbox.Sandbox, *program.Lines, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.removed:
		return nil, nil, protocol.Errorf(protocol.CodeNotFound, "sandbox %s was removed", s.id)
	case s.broken != nil:
		return nil, nil, s.broken
	case s.live == nil:
		return nil, nil, protocol.Errorf(protocol.CodeSandboxStopped, "sandbox %s has no running machine", s.id)
	}
	return s.live, s.lines, nil
}

// bring gives the sandbox a coordinator: start makes it, from a checkpoint of
// another sandbox or none. The turn is held.
func (s *Sandbox) bring(ctx context.Context, from protocol.CheckpointID, start func(context.Context, sandbox.Deps) (*sandbox.Sandbox, error)) error {
	lines := program.NewLines(nil)
	deps, err := s.deps(ctx, lines, from)
	if err != nil {
		return err
	}
	sb, err := start(ctx, deps)
	if err != nil {
		return err
	}
	lines.Use(sb)
	s.mu.Lock()
	s.live, s.lines = sb, lines
	s.mu.Unlock()
	s.d.task(func() {
		select {
		case <-sb.Ended():
			s.over(sb)
		case <-s.d.ctx.Done(): // Close sees to it
		}
	})
	return nil
}

// over takes a coordinator away that has no machine any more: the sandbox was
// ended, stopped or hibernated.
func (s *Sandbox) over(sb *sandbox.Sandbox) {
	sb.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == sb {
		s.live, s.lines = nil, nil
		clear(s.nodes)
	}
}

// observe is called in the order of events and must not block.
func (s *Sandbox) observe(lines *program.Lines, e sandbox.Event) {
	lines.Observe(e)
	if e.Kind == sandbox.EventTimelineStarted {
		s.mu.Lock()
		s.nodes[e.Node] = e.Line
		s.mu.Unlock()
		s.d.task(func() { s.carryOn(lines, e) })
	}
	s.d.emit(Event{Kind: e.Kind, Sandbox: s.id, Node: e.Node, Line: e.Line, Timeline: e.Timeline, Replaces: e.Replaces, Checkpoint: e.Checkpoint, Error: e.Error})
}

// Info is a sandbox as it is shown.
type Info struct {
	ID          protocol.SandboxID `json:"id"`
	Name        string             `json:"name,omitempty"`
	State       string             `json:"state"` // running, hibernated, stopped, ended
	Reason      *protocol.Error    `json:"reason,omitempty"`
	MemoryBytes int64              `json:"memory_bytes"`
	CPUs        int                `json:"cpus"`
	Live        int                `json:"live"` // timelines with a machine
}

// Info tells what is known of the sandbox.
func (s *Sandbox) Info() (Info, error) {
	s.mu.Lock()
	out := Info{ID: s.id, Name: s.kind.Name, MemoryBytes: s.kind.Kind.MemoryBytes, CPUs: s.kind.Kind.CPUs, Reason: s.broken}
	s.mu.Unlock()
	tree, err := sandbox.ReadTree(s.journal, s.id, nil)
	if err != nil {
		return out, err
	}
	out.State = tree.State
	for _, t := range tree.Timelines {
		if t.State == string(sandbox.StateLive) {
			out.Live++
		}
	}
	return out, nil
}
