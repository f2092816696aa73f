package agent

import (
	"context"
	"fmt"
	"sync"

	"github.com/ratoon-project/ratoon/guest/fork"
	"github.com/ratoon-project/ratoon/protocol"
)

// Stream is one bulk stream of a link; a *link.Stream.
type Stream interface {
	Send(v any) error
	Receive(v any) error
	Close() error
}

// Execs runs programs for the host; a *exec.Manager.
type Execs interface {
	// Serve returns when the stream ends; the program goes on.
	Serve(ctx context.Context, open protocol.ExecOpen, s Stream)
	// Offsets says how much output of each running program there is.
	Offsets() []protocol.ExecOffsets
	// CloseInputs ends the standard input of all programs: they belong to
	// another line now, for which nobody types.
	CloseInputs()
	// Of finds the exec that a process belongs to, and its main process.
	Of(pid int) (id protocol.ExecID, main int, ok bool)
	// StderrTail is the end of a program's standard error.
	StderrTail(id protocol.ExecID) []byte
	// Wait waits for the end of a program's main process.
	Wait(ctx context.Context, id protocol.ExecID) (protocol.ExitStatus, error)
}

// Files reads and writes files for the host; a *files.Server.
type Files interface {
	Serve(ctx context.Context, req protocol.FileRequest, s Stream)
}

// serveStreams takes the host's streams until the link ends.
func (a *Agent) serveStreams(ctx context.Context, l Link) {
	for {
		open, s, err := l.AcceptStream(ctx)
		if err != nil {
			return
		}
		a.tasks.Go(func() {
			defer s.Close()
			a.serveStream(ctx, open, s)
		})
	}
}

func (a *Agent) serveStream(ctx context.Context, open protocol.Open, s Stream) {
	switch {
	case open.Op == protocol.OpExec && open.Exec != nil && a.cfg.Execs != nil:
		g, err := a.enter(s)
		if err != nil {
			s.Send(protocol.ExecFrame{Error: err})
			return
		}
		defer g.leave()
		a.cfg.Execs.Serve(ctx, *open.Exec, g)
	case open.Op == protocol.OpFiles && open.File != nil && a.cfg.Files != nil:
		g, err := a.enter(s)
		if err != nil {
			s.Send(protocol.FileFrame{Error: err, Done: true})
			return
		}
		g.leave() // the server of files takes part in quiescing itself
		a.cfg.Files.Serve(ctx, *open.File, s)
	default:
		err := protocol.Errorf(protocol.CodeNotSupported, "stream operation %q is not known or has no request", open.Op)
		s.Send(protocol.ExecFrame{Error: err})
	}
}

// enter counts a stream in, if users run.
func (a *Agent) enter(s Stream) (*entrant, *protocol.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if state := a.machine.State(); state != protocol.StateRunning {
		return nil, protocol.Errorf(protocol.CodeBusy, "the guest is %s for a capture", state)
	}
	return a.gate.enter(s), nil
}

// gate holds back a freeze until no program is just being started: a process
// that is frozen between fork and exec would hold the worker's locks.
type gate struct {
	mu     sync.Mutex
	inside int
	empty  chan struct{} // closed when inside falls to 0; nil if nobody waits
}

var _ fork.Participant = (*gate)(nil)

func (g *gate) enter(s Stream) *entrant {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside++
	return &entrant{Stream: s, gate: g}
}

func (g *gate) Name() string { return "agent" }

// Prepare waits for those inside; no more enter, since the machine is no
// longer running.
func (g *gate) Prepare(ctx context.Context) error {
	g.mu.Lock()
	if g.inside == 0 {
		g.mu.Unlock()
		return nil
	}
	empty := make(chan struct{})
	g.empty = empty
	g.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for programs that are being started: %w", context.Cause(ctx))
	}
}

func (g *gate) Drain(context.Context) (protocol.Position, error) { return protocol.Position{}, nil }

func (g *gate) Resume() {}

// entrant is a stream that leaves its gate with the first frame it is sent:
// the program is started then, or is not going to be.
type entrant struct {
	Stream
	gate *gate
	once sync.Once
}

func (e *entrant) Send(v any) error {
	e.leave()
	return e.Stream.Send(v)
}

func (e *entrant) leave() {
	e.once.Do(func() {
		e.gate.mu.Lock()
		defer e.gate.mu.Unlock()
		e.gate.inside--
		if e.gate.inside == 0 && e.gate.empty != nil {
			close(e.gate.empty)
			e.gate.empty = nil
		}
	})
}
