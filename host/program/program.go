package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Stream is one exec stream. *link.Stream implements it.
type Stream interface {
	Send(any) error
	Receive(any) error
	Close() error
}

// Place is a timeline that holds the line.
type Place struct {
	Timeline protocol.TimelineID
	// Origin is the timeline that made the checkpoint this one was loaded
	// from, and Offsets how far the program's output was there; nil for a
	// timeline that was started, not restored.
	Origin  protocol.TimelineID
	Offsets *protocol.ExecOffsets
}

// Source is where the line is. The sandbox's owner implements it.
type Source interface {
	// Place returns the timeline that holds the line now. It waits while
	// there is none yet, and returns io.EOF once the line has ended.
	Place(ctx context.Context) (Place, error)
	// OpenStream opens a bulk stream to the timeline; it waits while its
	// link is down, and fails once it has ended.
	OpenStream(ctx context.Context, t protocol.TimelineID, o protocol.Open) (Stream, error)
}

// Options of New.
type Options struct {
	// ID names the program; empty: a new one.
	ID protocol.ExecID
	// Spec starts it. nil: it runs already.
	Spec *protocol.ExecSpec
	// Stdin, Stdout and Stderr may be nil: at its end, and discarded.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Skip the output before these offsets: it belongs to another line.
	From protocol.ExecOffsets
}

// Program is one program in a line.
type Program struct {
	id    protocol.ExecID
	spec  *protocol.ExecSpec
	out   map[string]io.Writer
	input *input

	mu     sync.Mutex // guards what follows
	begun  bool
	stream Stream
	seen   map[protocol.TimelineID]protocol.ExecOffsets // output taken from each timeline
	from   protocol.ExecOffsets
	resize *protocol.ExecResize
}

// New describes a program; Follow starts it.
func New(o Options) *Program {
	if o.ID == "" {
		o.ID = protocol.NewExecID()
	}
	p := &Program{id: o.ID, spec: o.Spec, from: o.From, begun: o.Spec == nil, seen: map[protocol.TimelineID]protocol.ExecOffsets{},
		out: map[string]io.Writer{"stdout": o.Stdout, "stderr": o.Stderr}}
	if o.Stdin != nil {
		p.input = newInput(o.Stdin)
	}
	return p
}

// ID names the program in its guest.
func (p *Program) ID() protocol.ExecID { return p.id }

// Follow runs the program to its exit. An error of code CodeSandboxStopped
// says that the line ended first.
func (p *Program) Follow(ctx context.Context, src Source) (*protocol.ExecExit, error) {
	for wait := time.Millisecond; ; {
		place, err := src.Place(ctx)
		if errors.Is(err, io.EOF) {
			return nil, protocol.Errorf(protocol.CodeSandboxStopped, "the line ended before the program did")
		}
		if err != nil {
			return nil, err
		}
		exit, progress, err := p.attach(ctx, src, place)
		if exit != nil || ctx.Err() != nil {
			return exit, errors.Join(err, context.Cause(ctx))
		}
		if refused, ok := errors.AsType[*refusal](err); ok {
			return nil, refused.Err
		}
		if progress {
			wait = time.Millisecond
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// refusal is an error that the guest gave as the answer.
type refusal struct{ Err *protocol.Error }

func (r *refusal) Error() string { return r.Err.Error() }

// attach follows the program on one link. It returns the exit when the
// program ended, else whether anything arrived.
func (p *Program) attach(ctx context.Context, src Source, place Place) (exit *protocol.ExecExit, progress bool, err error) {
	at := p.position(place)
	o := protocol.ExecOpen{ID: p.id, Stdout: at.Stdout, Stderr: at.Stderr}
	if !p.started() {
		o.Start = p.spec
	}
	st, err := src.OpenStream(ctx, place.Timeline, protocol.Open{Op: protocol.OpExec, Exec: &o})
	if err != nil {
		return nil, false, err
	}
	ended := make(chan struct{})
	var helpers sync.WaitGroup
	defer func() {
		close(ended)
		st.Close()
		helpers.Wait()
		p.use(nil)
	}()
	helpers.Go(func() { // the receive below does not know ctx
		select {
		case <-ctx.Done():
			st.Close()
		case <-ended:
		}
	})
	for {
		var f protocol.ExecFrame
		if err := st.Receive(&f); err != nil {
			return nil, progress, err
		}
		progress = true
		switch {
		case f.Error != nil:
			if f.Error.Code == protocol.CodeBusy {
				return nil, progress, f.Error
			}
			return nil, progress, &refusal{f.Error}
		case f.Started != nil:
			p.use(st)
			// What was taken on an earlier link need not be kept any longer.
			if err := p.ack(st, place); err != nil {
				return nil, progress, err
			}
			if p.input != nil {
				taken := f.Started.Stdin
				helpers.Go(func() { p.input.feed(st, place.Timeline, taken, ended) })
			}
		case f.Taken != nil && p.input != nil:
			p.input.taken(place.Timeline, *f.Taken)
		case f.Output != nil:
			if err := p.write(place.Timeline, f.Output); err != nil {
				return nil, progress, err
			}
			if err := p.ack(st, place); err != nil {
				return nil, progress, err
			}
		case f.Exit != nil:
			st.Send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: f.Exit.Stdout, Stderr: f.Exit.Stderr}})
			return f.Exit, true, nil
		}
	}
}

func (p *Program) ack(st Stream, place Place) error {
	at := p.position(place)
	return st.Send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: at.Stdout, Stderr: at.Stderr}})
}

func (p *Program) started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// position is the offset of the first output wanted of a timeline.
func (p *Program) position(place Place) protocol.ExecOffsets {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := p.seen[place.Timeline]; ok {
		return at
	}
	at := p.from
	if place.Offsets != nil {
		at = *place.Offsets
		// What the checkpoint's timeline produced before it and nobody took
		// is taken here, once.
		if before, ok := p.seen[place.Origin]; ok {
			at.Stdout, at.Stderr = min(at.Stdout, before.Stdout), min(at.Stderr, before.Stderr)
			p.seen[place.Origin] = protocol.ExecOffsets{Stdout: max(before.Stdout, place.Offsets.Stdout), Stderr: max(before.Stderr, place.Offsets.Stderr)}
		}
	}
	p.seen[place.Timeline] = at
	return at
}

// write passes output on, once.
func (p *Program) write(t protocol.TimelineID, o *protocol.ExecOutput) error {
	p.mu.Lock()
	at := p.seen[t]
	p.mu.Unlock()
	next := &at.Stdout
	if o.Stream == "stderr" {
		next = &at.Stderr
	}
	if o.Offset > *next {
		return protocol.Errorf(protocol.CodeProtocol, "output of %s at %d, want %d", o.Stream, o.Offset, *next)
	}
	data := o.Data[min(uint64(len(o.Data)), *next-o.Offset):]
	if w := p.out[o.Stream]; w != nil {
		if _, err := w.Write(data); err != nil {
			return &refusal{protocol.Errorf(protocol.CodeCancelled, "write %s: %v", o.Stream, err)}
		}
	}
	*next += uint64(len(data))
	p.mu.Lock()
	p.seen[t] = at
	p.mu.Unlock()
	return nil
}

// use remembers the stream that Signal and Resize go to.
func (p *Program) use(st Stream) {
	p.mu.Lock()
	p.stream = st
	if st != nil {
		p.begun = true
	}
	size := p.resize
	p.mu.Unlock()
	if st != nil && size != nil {
		st.Send(protocol.ExecFrame{Resize: size})
	}
}

// Signal sends a signal ("SIGINT") to the program.
func (p *Program) Signal(name string) error {
	return p.send(protocol.ExecFrame{Signal: name})
}

// Resize sets the size of the program's terminal, also on later links.
func (p *Program) Resize(rows, columns uint16) error {
	r := &protocol.ExecResize{Rows: rows, Columns: columns}
	p.mu.Lock()
	p.resize = r
	p.mu.Unlock()
	return p.send(protocol.ExecFrame{Resize: r})
}

func (p *Program) send(f protocol.ExecFrame) error {
	p.mu.Lock()
	st := p.stream
	p.mu.Unlock()
	if st == nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the program cannot be reached at this moment")
	}
	if err := st.Send(f); err != nil {
		return fmt.Errorf("send to program: %w", err)
	}
	return nil
}
