package daemon

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/spool"
	"github.com/ratoon-project/ratoon/protocol"
)

// Output is a piece of a program's output.
type Output struct {
	Stream string `json:"stream"` // stdout, stderr
	// Offset of Data in the stream. When it is beyond the end of the piece
	// before, what lies between is not kept any more.
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}

// Attachment says which output is wanted.
type Attachment struct {
	Exec           protocol.ExecID
	Node           string
	Stdout, Stderr int64 // offsets of the first byte wanted
	// Follow waits for more until the program ends; else what there is now is
	// all.
	Follow bool
}

// Attach calls f with output, from one goroutine at a time, and returns how
// the program ended; nil when it runs on. A program whose machine is gone, but
// may come back with its sandbox, is CodeSandboxStopped.
func (s *Sandbox) Attach(ctx context.Context, a Attachment, f func(Output) error) (*Ending, error) {
	e, err := s.find(a.Exec, a.Node)
	if err != nil {
		return nil, err
	}
	pieces := make(chan Output)
	readers, rctx := errgroup.WithContext(ctx)
	read := func(stream string, sp *spool.Spool, at int64) func() error {
		return func() error {
			for end := sp.End(); a.Follow || at < end; {
				p, err := sp.Read(rctx, at)
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				at = p.Offset + int64(len(p.Data))
				select {
				case pieces <- Output{stream, p.Offset, p.Data}:
				case <-rctx.Done():
					return context.Cause(rctx)
				}
			}
			return nil
		}
	}
	readers.Go(read("stdout", e.stdout, a.Stdout))
	readers.Go(read("stderr", e.stderr, a.Stderr))
	ended := make(chan error, 1)
	go func() { ended <- readers.Wait(); close(pieces) }()
	var failed error
	for p := range pieces {
		if failed == nil {
			if failed = f(p); failed != nil {
				readers.Go(func() error { return failed })
			}
		}
	}
	if err := <-ended; err != nil {
		return nil, err
	}
	if !a.Follow {
		s.mu.Lock()
		defer s.mu.Unlock()
		return e.record.ending(), nil
	}
	if err := e.wait(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.interrupted != nil {
		return nil, e.interrupted
	}
	return e.record.ending(), nil
}

// timedOut is the status of a program that was ended after its timeout.
const timedOut = 124

func (r *execRecord) ending() *Ending {
	switch {
	case r.Reason != nil:
		return &Ending{Status: -1, Error: r.Reason}
	case r.Exit == nil:
		return nil
	}
	out := &Ending{Status: r.Exit.Status.Shell(int(unix.SignalNum(r.Exit.Status.Signal))), Signal: r.Exit.Status.Signal, TimedOut: r.Exit.TimedOut}
	if out.TimedOut {
		out.Status = timedOut
	}
	return out
}

// Input writes to a program's standard input, and waits while it is not taken.
// end closes it.
func (s *Sandbox) Input(ctx context.Context, id protocol.ExecID, node string, data []byte, end bool) error {
	e, err := s.find(id, node)
	if err != nil {
		return err
	}
	if e.stdin == nil {
		return protocol.Errorf(protocol.CodeNotFound, "program %s has no standard input that is open", id)
	}
	if err := e.stdin.write(ctx, data); err != nil {
		return err
	}
	if end {
		e.stdin.close()
	}
	return nil
}

// Signal sends a signal ("SIGINT") to a program.
func (s *Sandbox) Signal(id protocol.ExecID, node, name string) error {
	if unix.SignalNum(name) == 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no signal such as SIGINT", clip(name))
	}
	e, err := s.find(id, node)
	if err != nil {
		return err
	}
	if e.program == nil {
		return protocol.Errorf(protocol.CodeNotFound, "program %s does not run", id)
	}
	e.program.Signal(name)
	return nil
}

// Resize sets the size of a program's terminal.
func (s *Sandbox) Resize(id protocol.ExecID, node string, rows, columns uint16) error {
	e, err := s.find(id, node)
	if err != nil {
		return err
	}
	if e.program == nil {
		return protocol.Errorf(protocol.CodeNotFound, "program %s does not run", id)
	}
	e.program.Resize(rows, columns)
	return nil
}
