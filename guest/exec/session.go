package exec

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// maxOutput is the most output in one frame.
const maxOutput = 32 << 10

// Stream is one exec stream of a link. Send must be done with v when it
// returns. If a Stream is an io.Closer, Serve closes it at its end, which makes
// a Receive under way return; else the caller must end it after Serve.
type Stream interface {
	Send(v any) error
	Receive(v any) error
}

// session is one stream attached to a program.
type session struct {
	program *program
	stream  Stream
	wake    chan struct{} // has a value when there may be something to send
	buf     []byte        // of the sender

	// Guarded by program.mu.
	started  bool
	next     [2]uint64 // output offsets to send from
	turn     int       // output that comes first
	told     uint64    // Taken as last told
	fed      bool      // input has come
	exitSent bool
	failure  error // to be sent as the last frame
	gone     bool  // the stream has ended
}

// Serve runs one stream: it starts or attaches to a program and returns when
// the stream has ended, or after an Error frame. The program goes on.
func (m *Manager) Serve(ctx context.Context, open protocol.ExecOpen, s Stream) {
	closer, canClose := s.(io.Closer)
	if canClose {
		// An error of Close says no more than that the stream is gone.
		defer closer.Close()
	}
	p, err := m.open(ctx, open)
	var c *session
	if err == nil {
		c, err = p.attach(open, s)
	}
	if err != nil {
		// If this cannot be sent, nobody is there to miss it.
		s.Send(&protocol.ExecFrame{Error: protocol.AsError(err)})
		return
	}
	stop := context.AfterFunc(ctx, func() {
		c.end()
		if canClose {
			closer.Close()
		}
	})
	defer stop()
	var receiver sync.WaitGroup
	receiver.Go(c.receive)
	c.send()
	c.detach()
	if canClose {
		closer.Close()
		receiver.Wait()
	}
}

// attach makes s the program's stream, in the place of an older one.
func (p *program) attach(open protocol.ExecOpen, s Stream) (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &session{program: p, stream: s, wake: make(chan struct{}, 1), next: [2]uint64{open.Stdout, open.Stderr}}
	for i, o := range p.outs {
		if err := o.offer(c.next[i]); err != nil {
			return nil, err
		}
	}
	if old := p.session; old != nil {
		old.failure = protocol.Errorf(protocol.CodeCancelled, "another stream has attached to program %s", p.id)
		poke(old.wake)
		p.in.forget()
	}
	p.session = c
	return c, nil
}

// offer checks that bytes from an offset on can be sent. The caller holds the
// program's lock.
func (o *output) offer(off uint64) error {
	var e *protocol.Error
	switch {
	case off < o.ring.base:
		e = protocol.Errorf(protocol.CodeNotFound, "%s from offset %d is gone, it was acknowledged up to %d", o.name, off, o.ring.base)
	case off > o.ring.end:
		e = protocol.Errorf(protocol.CodeInvalidArgument, "%s has %d bytes, offset %d is beyond", o.name, o.ring.end, off)
	default:
		return nil
	}
	return e.With("stream", o.name).With("oldest", o.ring.base).With("newest", o.ring.end)
}

// detach ends the session; the program's input waits for the next one.
func (c *session) detach() {
	p := c.program
	p.mu.Lock()
	defer p.mu.Unlock()
	c.gone = true
	if p.session == c {
		p.session, p.alone = nil, time.Now()
		p.in.forget()
	}
}

// end makes send return.
func (c *session) end() {
	c.program.mu.Lock()
	c.gone = true
	c.program.mu.Unlock()
	poke(c.wake)
}

// fail makes send return after an Error frame.
func (c *session) fail(err error) {
	c.program.mu.Lock()
	c.failure = err
	c.program.mu.Unlock()
	poke(c.wake)
}

// send sends what there is until the stream's end.
func (c *session) send() {
	for {
		f, last := c.frame()
		if f == nil && !last {
			<-c.wake
			continue
		}
		if f != nil && c.stream.Send(f) != nil || last {
			return
		}
	}
}

// frame is the next thing to send, nil when there is none now.
func (c *session) frame() (f *protocol.ExecFrame, last bool) {
	p := c.program
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.gone:
		return nil, true
	case c.failure != nil:
		return &protocol.ExecFrame{Error: protocol.AsError(c.failure)}, true
	case !c.started:
		c.started, c.told = true, p.in.taken
		return &protocol.ExecFrame{Started: &protocol.ExecStarted{PID: p.pid, Stdin: p.in.taken}}, false
	case c.told != p.in.taken:
		c.told = p.in.taken
		taken := c.told
		return &protocol.ExecFrame{Taken: &taken}, false
	}
	for range p.outs {
		i := c.turn
		c.turn = 1 - c.turn
		if out := c.output(i); out != nil {
			return &protocol.ExecFrame{Output: out}, false
		}
	}
	if p.finished && !c.exitSent {
		c.exitSent = true
		return &protocol.ExecFrame{Exit: &protocol.ExecExit{
			Status: p.status, TimedOut: p.timedOut,
			Stdout: p.outs[0].ring.end, Stderr: p.outs[1].ring.end,
		}}, false
	}
	return nil, false
}

func (c *session) output(i int) *protocol.ExecOutput {
	o := c.program.outs[i]
	off := c.next[i]
	n := min(maxOutput, int(o.ring.end-off))
	if n == 0 {
		return nil
	}
	if len(c.buf) < n {
		c.buf = make([]byte, n)
	}
	o.ring.read(off, c.buf[:n])
	c.next[i] += uint64(n)
	return &protocol.ExecOutput{Stream: o.name, Offset: off, Data: c.buf[:n]}
}

// receive handles what the host sends until the stream's end.
func (c *session) receive() {
	for failed := false; ; {
		var f protocol.ExecFrame
		if c.stream.Receive(&f) != nil {
			c.end()
			return
		}
		if failed {
			continue // so that the host is not stuck before it reads the error
		}
		if err := c.handle(&f); err != nil {
			c.fail(err)
			failed = true
		}
	}
}

func (c *session) handle(f *protocol.ExecFrame) error {
	p := c.program
	switch {
	case f.Input != nil:
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.session != c {
			return nil
		}
		return p.accept(f.Input)
	case f.Ack != nil:
		return c.acknowledge(f.Ack)
	case f.Signal != "":
		return p.signal(f.Signal)
	case f.Resize != nil:
		return p.resize(f.Resize)
	}
	return protocol.Errorf(protocol.CodeProtocol, "an exec frame from the host holds no input, ack, signal or resize")
}

func (c *session) acknowledge(a *protocol.ExecAck) error {
	p := c.program
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != c {
		return nil
	}
	all := true
	for i, to := range [2]uint64{a.Stdout, a.Stderr} {
		o := p.outs[i]
		if to > c.next[i] {
			return protocol.Errorf(protocol.CodeProtocol, "%s is acknowledged up to %d, but was sent up to %d", o.name, to, c.next[i])
		}
		o.ring.drop(to)
		if p.finished {
			o.ring.fit()
		}
		poke(o.room)
		all = all && o.ring.held() == 0
	}
	p.known = p.known || all && c.exitSent
	return nil
}

// owes tells whether there is output that the host has yet to acknowledge. A
// host whose link has just ended is about to attach again.
func (p *program) owes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	expected := p.session != nil || time.Since(p.alone) < delivery
	return expected && p.outs[0].ring.held()+p.outs[1].ring.held() > 0
}

func (p *program) acknowledged() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known
}

func (p *program) detached() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session == nil
}

// forget gives back the memory of a program that is no longer remembered. A
// stream that attached meanwhile and lacks something ends with an error.
func (p *program) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.outs {
		o.ring.base = o.ring.end
		o.ring.resize(0)
	}
	if c := p.session; c != nil && !c.exitSent {
		c.failure = protocol.Errorf(protocol.CodeUnavailable, "too many programs have ended since program %s", p.id)
		poke(c.wake)
	}
}
