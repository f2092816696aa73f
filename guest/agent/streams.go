package agent

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
)

// Stream is one bulk stream of a link; a *link.Stream.
type Stream interface {
	Send(v any) error
	Receive(v any) error
	CloseWrite() error
	Close() error
}

// Execs runs programs for the host; a *exec.Manager.
type Execs interface {
	// Serve returns when the stream ends; the program goes on.
	Serve(ctx context.Context, open protocol.ExecOpen, s Stream)
	// Offsets says how much output of each running program there is, and how
	// much input it has consumed.
	Offsets() []protocol.ExecOffsets
	// Deliver waits until the host has what programs have written so far.
	Deliver(ctx context.Context)
	// CloseInputs ends the standard input of all programs: they belong to
	// another line now, for which nobody types.
	CloseInputs()
	// Advance leaves out input that programs had consumed in the timeline
	// which this one replaces.
	Advance(replaced []protocol.ExecOffsets)
	// Of finds the exec that a process belongs to, and its main process.
	Of(pid int) (id protocol.ExecID, main int, ok bool)
	// StderrTail is the end of a program's standard error.
	StderrTail(id protocol.ExecID) []byte
	// Wait gives the status of a program's main process when it has ended;
	// the channel is closed without one for an unknown id.
	Wait(id protocol.ExecID) <-chan protocol.ExitStatus
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
	busy := a.busy()
	switch {
	case open.Op == protocol.OpExec && open.Exec != nil && a.cfg.Execs != nil:
		if busy != nil {
			s.Send(protocol.ExecFrame{Error: busy})
			return
		}
		a.cfg.Execs.Serve(ctx, *open.Exec, s)
	case open.Op == protocol.OpFiles && open.File != nil && a.cfg.Files != nil:
		if busy != nil {
			s.Send(protocol.FileFrame{Error: busy, Done: true})
			return
		}
		a.cfg.Files.Serve(ctx, *open.File, s)
	default:
		s.Send(protocol.ExecFrame{Error: protocol.Errorf(protocol.CodeNotSupported, "there is no stream operation %.64q with this request", open.Op)})
	}
}

// busy is the refusal of a stream, nil while users run. A freeze may begin
// right after: execs and files take part in quiescing and see to that.
func (a *Agent) busy() *protocol.Error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if state := a.machine.State(); state != protocol.StateRunning {
		return protocol.Errorf(protocol.CodeBusy, "the guest is %s for a capture", state)
	}
	return nil
}
