package program_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is one stream whose guest end is the test.
type pipe struct {
	toHost, toGuest chan protocol.ExecFrame
	closed          chan struct{}
	once            sync.Once
}

func newPipe() *pipe {
	return &pipe{toHost: make(chan protocol.ExecFrame), toGuest: make(chan protocol.ExecFrame, 64), closed: make(chan struct{})}
}

func (p *pipe) Send(v any) error {
	select {
	case <-p.closed:
		return net.ErrClosed
	default:
	}
	select {
	case p.toGuest <- v.(protocol.ExecFrame):
		return nil
	case <-p.closed:
		return net.ErrClosed
	}
}

func (p *pipe) Receive(v any) error {
	select {
	case f := <-p.toHost:
		*v.(*protocol.ExecFrame) = f
		return nil
	case <-p.closed:
		return net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// put sends a frame as the guest does; false when the stream is over.
func (p *pipe) put(f protocol.ExecFrame) bool {
	select {
	case p.toHost <- f:
		return true
	case <-p.closed:
		return false
	}
}

// input is the next input frame.
func (p *pipe) input(t *testing.T) protocol.ExecInput {
	t.Helper()
	for f := range p.toGuest {
		if f.Input != nil {
			return *f.Input
		}
	}
	panic("unreachable")
}

// oneLine hands out the streams one after another, each to the next timeline
// if places says so, and then is at its end.
type oneLine struct {
	mu      sync.Mutex
	streams []*pipe
	places  [][]program.Place // for each stream; nil: one timeline for all
	opened  []protocol.Open
}

func (l *oneLine) Places(context.Context) ([]program.Place, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.opened) == len(l.streams) {
		return nil, io.EOF
	}
	if l.places != nil {
		return l.places[len(l.opened)], nil
	}
	return []program.Place{{Timeline: "tl-a"}}, nil
}

func (l *oneLine) OpenStream(_ context.Context, _ protocol.TimelineID, o protocol.Open) (program.Stream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.opened) == len(l.streams) {
		return nil, protocol.Errorf(protocol.CodeSandboxStopped, "over")
	}
	l.opened = append(l.opened, o)
	return l.streams[len(l.opened)-1], nil
}

func started(taken uint64) protocol.ExecFrame {
	return protocol.ExecFrame{Started: &protocol.ExecStarted{PID: 1, Stdin: taken}}
}

func taken(n uint64) protocol.ExecFrame { return protocol.ExecFrame{Taken: &n} }

var exited = protocol.ExecFrame{Exit: &protocol.ExecExit{}}

// follow runs Follow beside the test.
func follow(ctx context.Context, p *program.Program, src program.Source) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := p.Follow(ctx, src)
		done <- err
	}()
	return done
}

// A start is asked for until the guest has begun it, and then only attached.
func TestStartOnce(t *testing.T) {
	t.Parallel()
	l := &oneLine{streams: []*pipe{newPipe(), newPipe(), newPipe()}}
	p := program.New(program.Options{Spec: &protocol.ExecSpec{Argv: []string{"x"}}})
	done := follow(t.Context(), p, l)
	l.streams[0].Close()
	l.streams[1].put(started(0))
	l.streams[1].put(protocol.ExecFrame{Output: &protocol.ExecOutput{Stream: "stdout", Data: []byte("abc")}})
	l.streams[1].Close()
	l.streams[2].put(started(0))
	l.streams[2].put(exited)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var starts []bool
	var offsets []uint64
	for _, o := range l.opened {
		starts, offsets = append(starts, o.Exec.Start != nil), append(offsets, o.Exec.Stdout)
	}
	if diff := cmp.Diff([]bool{true, true, false}, starts); diff != "" {
		t.Errorf("asked to start (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]uint64{0, 0, 3}, offsets); diff != "" {
		t.Errorf("offsets (-want +got):\n%s", diff)
	}
}

func TestEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("the pipe is gone")
	for _, tc := range []struct {
		name   string
		frame  protocol.ExecFrame
		stdout io.Writer
		code   protocol.Code
	}{
		{"refused", protocol.ExecFrame{Error: protocol.Errorf(protocol.CodeNotFound, "no such program")}, nil, protocol.CodeNotFound},
		{"busy, then the line's end", protocol.ExecFrame{Error: protocol.Errorf(protocol.CodeBusy, "later")}, nil, protocol.CodeSandboxStopped},
		{"output nobody reads", protocol.ExecFrame{Output: &protocol.ExecOutput{Stream: "stdout", Data: []byte("x")}}, failing{broken}, protocol.CodeCancelled},
		{"nothing", protocol.ExecFrame{}, nil, protocol.CodeSandboxStopped},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			st := newPipe()
			p := program.New(program.Options{Spec: &protocol.ExecSpec{}, Stdout: tc.stdout})
			done := follow(t.Context(), p, &oneLine{streams: []*pipe{st}})
			st.put(tc.frame)
			if tc.code == protocol.CodeSandboxStopped {
				st.Close()
			}
			if err := <-done; protocol.CodeOf(err) != tc.code {
				t.Errorf("got %v, want %s", err, tc.code)
			}
			<-st.closed
		})
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// The cause of ctx is what Follow returns, not what it made of the stream.
func TestCancelled(t *testing.T) {
	t.Parallel()
	why := protocol.Errorf(protocol.CodeCancelled, "ended by SIGINT")
	st := newPipe()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := follow(ctx, program.New(program.Options{Spec: &protocol.ExecSpec{}, Stdin: strings.NewReader("x")}), &oneLine{streams: []*pipe{st}})
	st.put(started(0))
	cancel(why)
	if err := <-done; !errors.Is(err, why) || err.Error() != why.Message {
		t.Errorf("got %v, want %v", err, why)
	}
	<-st.closed
}

// A signal that comes while the program cannot be reached waits, once.
func TestSignalWaits(t *testing.T) {
	t.Parallel()
	l := &oneLine{streams: []*pipe{newPipe(), newPipe()}}
	p := program.New(program.Options{Spec: &protocol.ExecSpec{}})
	p.Signal("SIGTERM")
	p.Signal("SIGTERM")
	p.Resize(10, 20)
	done := follow(t.Context(), p, l)
	var got []protocol.ExecFrame
	take := func(st *pipe, n int) {
		for range n {
			if f := <-st.toGuest; f.Ack == nil {
				got = append(got, f)
			}
		}
	}
	l.streams[0].put(started(0))
	take(l.streams[0], 3) // with the acknowledgement
	p.Signal("SIGINT")
	take(l.streams[0], 1)
	l.streams[0].Close()
	p.Signal("SIGHUP")
	l.streams[1].put(started(0))
	take(l.streams[1], 3)
	l.streams[1].put(exited)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	size := protocol.ExecFrame{Resize: &protocol.ExecResize{Rows: 10, Columns: 20}}
	want := []protocol.ExecFrame{size, {Signal: "SIGTERM"}, {Signal: "SIGINT"}, size, {Signal: "SIGHUP"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("signals and sizes (-want +got):\n%s", diff)
	}
}

// Output that is not taken stops the guest's program, and ctx still ends it.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := follow(ctx, program.New(program.Options{Spec: &protocol.ExecSpec{}, Stdout: w}), linked{host})
	_, st, err := guest.AcceptStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(started(0)); err != nil {
		t.Fatal(err)
	}
	var sent int
	var mu sync.Mutex
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		data := bytes.Repeat([]byte("x"), 1<<20)
		for {
			st.SetDeadline(time.Now().Add(300 * time.Millisecond))
			if st.Send(protocol.ExecFrame{Output: &protocol.ExecOutput{Stream: "stdout", Offset: uint64(sent), Data: data}}) != nil {
				return
			}
			mu.Lock()
			sent += len(data)
			mu.Unlock()
		}
	}()
	<-stuck
	if sent > 16<<20 {
		t.Errorf("%d bytes were taken that nobody reads", sent)
	}
	cancel()
	r.Close()
	if err := <-done; err == nil {
		t.Error("Follow ended well")
	}
}

// linked is a line of one timeline with a real link.
type linked struct{ *link.Link }

func (linked) Places(context.Context) ([]program.Place, error) { return make([]program.Place, 1), nil }

func (l linked) OpenStream(ctx context.Context, _ protocol.TimelineID, o protocol.Open) (program.Stream, error) {
	return l.Link.OpenStream(ctx, o)
}

func TestLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const exec = protocol.ExecID("ex-a")
		var begun []program.Line
		lines := program.NewLines(func(l program.Line) { begun = append(begun, l) })
		src := lines.Source("ln-a", exec)
		wait := func() []program.Place {
			t.Helper()
			got := make(chan []program.Place, 1)
			go func() {
				p, err := src.Places(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- p
			}()
			synctest.Wait()
			select {
			case p := <-got:
				return p
			default:
			}
			lines.Use(nobody{}) // what it waits for
			return <-got
		}
		at := protocol.ExecOffsets{ID: exec, Stdout: 7}
		lines.Observe(sandbox.Event{Kind: sandbox.EventTimelineStarted, Line: "ln-a", Node: "0", Timeline: "tl-1"})
		if diff := cmp.Diff([]program.Place{{Timeline: "tl-1"}}, wait()); diff != "" {
			t.Errorf("started (-want +got):\n%s", diff)
		}
		restored := sandbox.Event{Kind: sandbox.EventTimelineStarted, Line: "ln-a", Node: "0", Timeline: "tl-2", Replaces: "tl-1", Maker: "tl-1",
			Execs: []protocol.ExecOffsets{{ID: "ex-b"}, at}}
		lines.Observe(restored)
		lines.Observe(sandbox.Event{Kind: sandbox.EventTimelineEnded, Line: "ln-a", Timeline: "tl-1"}) // of the one before
		want := []program.Place{{Timeline: "tl-1"}, {Timeline: "tl-2", Origin: "tl-1", Offsets: &at}}
		if diff := cmp.Diff(want, wait()); diff != "" {
			t.Errorf("restored (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]program.Line{{ID: "ln-a", Node: "0"}}, begun); diff != "" {
			t.Errorf("lines begun (-want +got):\n%s", diff)
		}
		lines.Observe(sandbox.Event{Kind: sandbox.EventTimelineEnded, Line: "ln-a", Timeline: "tl-2"})
		if _, err := src.Places(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("ended: got %v, want EOF", err)
		}
		other := lines.Source("ln-b", exec)
		ended := make(chan error, 1)
		lines.Observe(sandbox.Event{Kind: sandbox.EventTimelineStarted, Line: "ln-b", Node: "0.0", Timeline: "tl-3"})
		lines.Observe(sandbox.Event{Kind: sandbox.EventSandboxEnded})
		go func() {
			_, err := other.Places(t.Context())
			ended <- err
		}()
		if err := <-ended; !errors.Is(err, io.EOF) {
			t.Errorf("sandbox ended: got %v, want EOF", err)
		}
	})
}

type nobody struct{}

func (nobody) OpenStream(context.Context, protocol.TimelineID, protocol.Open) (*link.Stream, error) {
	return nil, protocol.Errorf(protocol.CodeSandboxStopped, "no machine")
}
