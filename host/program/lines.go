package program

import (
	"context"
	"io"
	"slices"
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
	by    []start // oldest first; the last holds the line
	ended bool
}

// start is how a timeline came to hold its line.
type start struct {
	timeline, maker protocol.TimelineID
	execs           []protocol.ExecOffsets
}

func (s start) place(id protocol.ExecID) Place {
	p := Place{Timeline: s.timeline, Origin: s.maker}
	if i := slices.IndexFunc(s.execs, func(e protocol.ExecOffsets) bool { return e.ID == id }); i >= 0 {
		p.Offsets = &s.execs[i]
	}
	return p
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
		h := l.places[e.Line]
		if h == nil {
			h = &held{}
			l.places[e.Line] = h
			if l.started != nil {
				l.started(Line{ID: e.Line, Node: e.Node, Execs: e.Execs})
			}
		}
		h.by, h.ended = append(h.by, start{e.Timeline, e.Maker, e.Execs}), false
	case sandbox.EventTimelineEnded:
		if h := l.places[e.Line]; h != nil && h.by[len(h.by)-1].timeline == e.Timeline {
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

// Places implements Source. A line whose timeline ended may be restored, until
// its sandbox is over; but a program has lost its line when nothing holds it.
func (s lineSource) Places(ctx context.Context) ([]Place, error) {
	for {
		places, changed, err := s.look()
		if places != nil || err != nil {
			return places, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s lineSource) look() (places []Place, changed <-chan struct{}, err error) {
	l := s.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.places[s.line]
	if h != nil && h.ended {
		return nil, nil, io.EOF
	}
	if h != nil && l.streams != nil {
		for _, by := range h.by {
			places = append(places, by.place(s.id))
		}
	}
	return places, l.changed, nil
}

// OpenStream implements Source.
func (s lineSource) OpenStream(ctx context.Context, t protocol.TimelineID, o protocol.Open) (Stream, error) {
	s.lines.mu.Lock()
	streams := s.lines.streams
	s.lines.mu.Unlock()
	return streams.OpenStream(ctx, t, o)
}
