package program

import (
	"context"
	"errors"
	"io"
	"slices"
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

// Place is a timeline that holds or held the line.
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
	// Places returns the timelines that have held the line, oldest first; the
	// last holds it now. It waits while there is none yet, and returns io.EOF
	// once the line has ended.
	Places(ctx context.Context) ([]Place, error)
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

	mu      sync.Mutex // guards what follows
	begun   bool
	stream  Stream
	reached map[protocol.TimelineID]*reached
	from    protocol.ExecOffsets
	resize  *protocol.ExecResize
	signals []string // for when the program can be reached
}

// reached is how much output of a timeline was passed on. What comes before
// the checkpoint is also its origin's, and that of others loaded from there.
type reached struct {
	own        protocol.ExecOffsets
	checkpoint protocol.ExecOffsets
	origin     *reached // nil: not followed, or passed on up to the checkpoint
}

// so is how far the output was passed on, by whichever timeline.
func (r *reached) so() protocol.ExecOffsets {
	if r.origin == nil {
		return r.own
	}
	before := least(r.checkpoint, r.origin.so())
	r.own = most(r.own, before)
	if before.Stdout == r.checkpoint.Stdout && before.Stderr == r.checkpoint.Stderr {
		r.origin = nil
	}
	return r.own
}

// advance says that output was passed on.
func (r *reached) advance(to protocol.ExecOffsets) {
	for ; r != nil; r = r.origin {
		r.own = most(r.own, to)
		to = least(to, r.checkpoint)
	}
}

func least(a, b protocol.ExecOffsets) protocol.ExecOffsets {
	return protocol.ExecOffsets{Stdout: min(a.Stdout, b.Stdout), Stderr: min(a.Stderr, b.Stderr)}
}

func most(a, b protocol.ExecOffsets) protocol.ExecOffsets {
	return protocol.ExecOffsets{Stdout: max(a.Stdout, b.Stdout), Stderr: max(a.Stderr, b.Stderr)}
}

// New describes a program; Follow starts it.
func New(o Options) *Program {
	if o.ID == "" {
		o.ID = protocol.NewExecID()
	}
	p := &Program{id: o.ID, spec: o.Spec, from: o.From, begun: o.Spec == nil, reached: map[protocol.TimelineID]*reached{},
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
	if p.input != nil {
		defer p.input.close()
	}
	for wait := time.Millisecond; ; {
		places, err := src.Places(ctx)
		if errors.Is(err, io.EOF) {
			return nil, protocol.Errorf(protocol.CodeSandboxStopped, "the line ended before the program did")
		}
		if err != nil {
			return nil, err
		}
		p.locate(places)
		exit, progress, err := p.attach(ctx, src, places[len(places)-1])
		if exit != nil {
			return exit, nil
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
			return nil, context.Cause(ctx)
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// refusal is an error that ends the program's following.
type refusal struct{ Err *protocol.Error }

func (r *refusal) Error() string { return r.Err.Error() }

func refuse(format string, args ...any) *refusal {
	return &refusal{protocol.Errorf(protocol.CodeProtocol, format, args...)}
}

func (p *Program) started() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// locate finds where the output of timelines begins that were not known yet.
// What an origin produced before the checkpoint and nobody took yet is taken
// of the timeline that was loaded from it.
func (p *Program) locate(places []Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, place := range places {
		if p.reached[place.Timeline] != nil {
			continue
		}
		r := &reached{own: p.from}
		if place.Offsets != nil {
			r.checkpoint, r.origin = *place.Offsets, p.reached[place.Origin]
			if r.own = r.checkpoint; r.origin != nil {
				r.own = protocol.ExecOffsets{}
			}
		}
		p.reached[place.Timeline] = r
	}
}

// position is the offset of the first output wanted of a timeline.
func (p *Program) position(t protocol.TimelineID) protocol.ExecOffsets {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reached[t].so()
}

// write passes output on, once.
func (p *Program) write(t protocol.TimelineID, o *protocol.ExecOutput) error {
	at := p.position(t)
	next := &at.Stdout
	switch o.Stream {
	case "stdout":
	case "stderr":
		next = &at.Stderr
	default:
		return refuse("output of a stream %q", o.Stream)
	}
	if o.Offset > *next {
		return refuse("output of %s at %d, want %d", o.Stream, o.Offset, *next)
	}
	data := o.Data[min(uint64(len(o.Data)), *next-o.Offset):]
	if w := p.out[o.Stream]; w != nil {
		if _, err := w.Write(data); err != nil {
			return &refusal{protocol.Errorf(protocol.CodeCancelled, "write %s: %v", o.Stream, err)}
		}
	}
	*next += uint64(len(data))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reached[t].advance(at)
	return nil
}

// use remembers the stream that Signal and Resize go to, and sends what had
// to wait for it.
func (p *Program) use(st Stream) {
	p.mu.Lock()
	p.stream = st
	if st == nil {
		p.mu.Unlock()
		return
	}
	p.begun = true
	size, signals := p.resize, p.signals
	p.signals = nil
	p.mu.Unlock()
	if size != nil {
		st.Send(protocol.ExecFrame{Resize: size})
	}
	for _, name := range signals {
		p.Signal(name)
	}
}

// Signal sends a signal ("SIGINT") to the program. While it cannot be
// reached, as in a capture, the signal waits, as it would for a stopped
// process.
func (p *Program) Signal(name string) {
	if p.send(protocol.ExecFrame{Signal: name}) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.signals, name) {
		p.signals = append(p.signals, name)
	}
}

// Resize sets the size of the program's terminal, also on later links.
func (p *Program) Resize(rows, columns uint16) {
	r := &protocol.ExecResize{Rows: rows, Columns: columns}
	p.mu.Lock()
	p.resize = r
	p.mu.Unlock()
	p.send(protocol.ExecFrame{Resize: r})
}

func (p *Program) send(f protocol.ExecFrame) bool {
	p.mu.Lock()
	st := p.stream
	p.mu.Unlock()
	return st != nil && st.Send(f) == nil
}
