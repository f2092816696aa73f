package program

import (
	"context"
	"io"
	"sync"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// Streams opens streams to timelines. *sandbox.Sandbox implements it.
type Streams interface {
	OpenStream(context.Context, protocol.TimelineID, protocol.Open) (*link.Stream, error)
}

// Lines knows from a sandbox's events which timeline holds each line. Its
// zero value is not usable; see NewLines.
type Lines struct {
	mu      sync.Mutex // guards what follows
	changed chan struct{}
	places  map[protocol.LineID]*held
	streams Streams
	started func(Line)
}

// Line is a line when its first timeline starts.
type Line struct {
	ID    protocol.LineID
	Node  string
	Execs []protocol.ExecOffsets // programs that run in it, and their output so far
}

type held struct {
	timeline, maker protocol.TimelineID
	execs           []protocol.ExecOffsets
	ended           bool
}

// NewLines makes a Lines whose Observe is to be given the sandbox's events.
// started is called with each new line, in Observe, and must not block.
func NewLines(started func(Line)) *Lines {
	return &Lines{changed: make(chan struct{}), places: map[protocol.LineID]*held{}, started: started}
}

// Use says where streams are opened, once the sandbox exists.
func (l *Lines) Use(s Streams) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams = s
	l.signal()
}

func (l *Lines) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Observe takes an event. It does not block.
func (l *Lines) Observe(e sandbox.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind {
	case sandbox.EventTimelineStarted:
		first := l.places[e.Line] == nil
		l.places[e.Line] = &held{timeline: e.Timeline, maker: e.Maker, execs: e.Execs}
		if first && l.started != nil {
			l.started(Line{ID: e.Line, Node: e.Node, Execs: e.Execs})
		}
	case sandbox.EventTimelineEnded:
		if h := l.places[e.Line]; h != nil && h.timeline == e.Timeline {
			h.ended = true
		}
	case sandbox.EventSandboxEnded:
		for _, h := range l.places {
			h.ended = true
		}
	default:
		return
	}
	l.signal()
}

// Source is where one program of a line is.
func (l *Lines) Source(line protocol.LineID, id protocol.ExecID) Source {
	return lineSource{l, line, id}
}

type lineSource struct {
	lines *Lines
	line  protocol.LineID
	id    protocol.ExecID
}

// Place implements Source. A line whose timeline ended may be restored, until
// its sandbox is over; but a program has lost its line when nothing holds it.
func (s lineSource) Place(ctx context.Context) (Place, error) {
	for {
		s.lines.mu.Lock()
		h, changed, ready := s.lines.places[s.line], s.lines.changed, s.lines.streams != nil
		s.lines.mu.Unlock()
		if h != nil && h.ended {
			return Place{}, io.EOF
		}
		if h != nil && ready {
			p := Place{Timeline: h.timeline, Origin: h.maker}
			for _, e := range h.execs {
				if e.ID == s.id {
					p.Offsets = &e
				}
			}
			return p, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Place{}, context.Cause(ctx)
		}
	}
}

// OpenStream implements Source.
func (s lineSource) OpenStream(ctx context.Context, t protocol.TimelineID, o protocol.Open) (Stream, error) {
	s.lines.mu.Lock()
	streams := s.lines.streams
	s.lines.mu.Unlock()
	return streams.OpenStream(ctx, t, o)
}
