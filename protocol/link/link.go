package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"

	"github.com/hashicorp/yamux"

	"github.com/ratoon-project/ratoon/protocol"
)

const (
	window        = 1 << 20 // of each stream, in bytes
	queuedInbound = 16      // control messages that wait for Receive
)

// Link is one connection between host and guest: control messages and bulk
// streams. Make it with Connect or Accept.
type Link struct {
	opt     Options
	conns   pair
	control *yamux.Session
	bulk    *yamux.Session
	stream  *yamux.Stream // the control stream

	// ctx ends when the link has failed or was closed, with the reason.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	outbound chan *outFrame
	inbound  chan protocol.Message // closed by receiveLoop
	accepted chan accepted

	longTurn chan struct{} // held while a long message is sent
	longSent uint64        // guarded by longTurn
	longSlot chan struct{} // held while a long message is collected
	longDone chan longMessage

	openMu sync.Mutex // between counting streams and opening one

	mu   sync.Mutex // guards err and closing of done
	err  error
	done chan struct{}
}

type accepted struct {
	open   protocol.Open
	stream *Stream
}

// Connect makes the host's end of a link. It tries until the guest answers or
// ctx ends; ctx does not bound the life of the link. The error of a ctx that
// ended is of protocol.CodeUnavailable, names the stage, and wraps the cause.
func Connect(ctx context.Context, c Carrier, opt Options) (*Link, error) {
	opt.host = true
	return start(ctx, c, opt)
}

// Accept waits for a host and makes the guest's end of a link.
func Accept(ctx context.Context, c Carrier, opt Options) (*Link, error) {
	opt.host = false
	return start(ctx, c, opt)
}

func start(ctx context.Context, c Carrier, opt Options) (*Link, error) {
	for {
		conns, err := establish(ctx, c, opt)
		if err != nil {
			return nil, err
		}
		l, err := newLink(ctx, conns, opt)
		if err == nil {
			return l, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, unavailable(cause, err)
		}
		if permanent(err) {
			return nil, err
		}
		opt.log().Debug("link failed at its start", "error", err)
	}
}

func newLink(ctx context.Context, conns pair, opt Options) (*Link, error) {
	l := &Link{
		opt:      opt,
		conns:    conns,
		outbound: make(chan *outFrame),
		inbound:  make(chan protocol.Message, queuedInbound),
		accepted: make(chan accepted),
		longTurn: make(chan struct{}, 1),
		longSlot: make(chan struct{}, 1),
		longDone: make(chan longMessage),
		done:     make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	if err := l.startSessions(); err != nil {
		return nil, errors.Join(err, conns.control.Close(), conns.bulk.Close())
	}
	l.wg.Go(l.reap)
	if err := l.openControl(ctx); err != nil {
		l.fail(err)
		l.wg.Wait()
		if reason := conns.control.failure(); reason != nil {
			err = reason
		}
		return nil, fmt.Errorf("open control stream: %w", err)
	}
	l.wg.Go(l.sendLoop)
	l.wg.Go(l.receiveLoop)
	l.wg.Go(func() { l.watch(l.control, conns.control, l.refuseStream) })
	l.wg.Go(func() { l.watch(l.bulk, conns.bulk, l.takeStream) })
	return l, nil
}

func (l *Link) startSessions() (err error) {
	config := yamux.DefaultConfig()
	config.EnableKeepAlive = false
	config.AcceptBacklog = protocol.MaxStreams
	config.MaxStreamWindowSize = window
	// The record connection's own deadline comes first; this one ends the wait
	// behind others for a turn to write.
	config.ConnectionWriteTimeout = 2 * l.opt.stall()
	// No timers: the count of streams and the end of the link bound them.
	config.StreamOpenTimeout = 0
	config.StreamCloseTimeout = 0
	config.LogOutput = nil
	config.Logger = log.New(io.Discard, "", 0)
	session := yamux.Server
	if l.opt.host {
		session = yamux.Client
	}
	if l.control, err = session(l.conns.control, config); err != nil {
		return fmt.Errorf("start multiplexer: %w", err)
	}
	if l.bulk, err = session(l.conns.bulk, config); err != nil {
		l.control.Close()
		return fmt.Errorf("start multiplexer: %w", err)
	}
	return nil
}

// openControl opens the control stream at the host, takes it at the guest.
func (l *Link) openControl(ctx context.Context) (err error) {
	if l.opt.host {
		l.stream, err = l.control.OpenStream()
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.opt.stall())
	defer cancel()
	l.stream, err = l.control.AcceptStreamWithContext(ctx)
	return err
}

// reap closes the sessions, and so the connections, when the link is over.
func (l *Link) reap() {
	<-l.ctx.Done()
	l.control.Close()
	l.bulk.Close()
}

// watch takes the streams that the peer opens, until the session is over, and
// then finds out why.
func (l *Link) watch(s *yamux.Session, c *recordConn, take func(*yamux.Stream)) {
	for {
		stream, err := s.AcceptStream()
		if err == nil {
			take(stream)
			continue
		}
		if !s.IsClosed() {
			continue // the stream was gone before it could be acknowledged
		}
		s.Close() // waits for both of the session's goroutines
		if c.stopped.Load() {
			return // End says how the link is over
		}
		if reason := c.failure(); reason != nil {
			err = reason
		} else if isClosed(c.ended) {
			if isClosed(l.conns.control.ended) && isClosed(l.conns.bulk.ended) {
				l.finish(io.EOF)
			}
			return
		}
		if errors.Is(err, yamux.ErrSessionShutdown) {
			err = sessionError(s)
		}
		l.fail(muxError(err))
		return
	}
}

// sessionError is why a session ended that is over. AcceptStream tells it once
// the streams are used up that nobody took.
func sessionError(s *yamux.Session) error {
	for range protocol.MaxStreams {
		if _, err := s.AcceptStream(); err != nil && !errors.Is(err, yamux.ErrSessionShutdown) {
			return err
		}
	}
	return yamux.ErrSessionShutdown
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// muxError types the errors with which yamux ends a session.
func muxError(err error) error {
	for _, e := range []error{yamux.ErrInvalidVersion, yamux.ErrInvalidMsgType, yamux.ErrDuplicateStream,
		yamux.ErrRecvWindowExceeded, yamux.ErrUnexpectedFlag} {
		if errors.Is(err, e) {
			return violation("multiplexer: %v", err)
		}
	}
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return err
	}
	return fmt.Errorf("%w", protocol.Errorf(protocol.CodeUnavailable, "link broke: %v", err))
}

// finish records why the link is over. What was received stays readable.
func (l *Link) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// fail ends the link and everything that waits on it.
func (l *Link) fail(err error) {
	l.finish(err)
	l.cancel(err)
}

// Done is closed when the link is over: failed, ended by both END records, or
// closed.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err says why the link is over: io.EOF when END was read or written on both
// connections, net.ErrClosed after Close, else what failed. It is nil before.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// over is what a call on a link gets that is over or about to be.
func (l *Link) over() error {
	switch err := l.Err(); {
	case err == nil || errors.Is(err, io.EOF):
		return protocol.Errorf(protocol.CodeUnavailable, "link has ended")
	case errors.Is(err, net.ErrClosed):
		return fmt.Errorf("%w (%w)", protocol.Errorf(protocol.CodeUnavailable, "link is closed"), net.ErrClosed)
	default:
		return err
	}
}

// End closes the link and then writes END on both connections; no byte follows
// it. An error means that END may be missing. On SerialPorts the next Accept
// writes it.
func (l *Link) End() error {
	both := []*recordConn{l.conns.bulk, l.conns.control}
	err := errors.Join(both[0].stop(), both[1].stop())
	if err == nil {
		l.fail(io.EOF)
	} else {
		l.fail(fmt.Errorf("end link: %w", err))
	}
	l.wg.Wait()
	for _, c := range both {
		if err == nil {
			err = c.end()
		}
		c.raw.Close() // which a Close after stop has left open
	}
	if err != nil {
		return fmt.Errorf("end link: %w", err)
	}
	return nil
}

// AwaitEnd waits until END was read on both connections.
func (l *Link) AwaitEnd(ctx context.Context) error {
	for _, c := range []*recordConn{l.conns.control, l.conns.bulk} {
		select {
		case <-c.ended:
			continue
		case <-l.ctx.Done():
		case <-ctx.Done():
			return fmt.Errorf("await end of link: %w", context.Cause(ctx))
		}
		if !isClosed(c.ended) {
			return fmt.Errorf("await end of link: %w", l.over())
		}
	}
	return nil
}

// Close ends the link without END and waits for its goroutines. It may be
// called again, and after End.
func (l *Link) Close() error {
	l.fail(net.ErrClosed)
	l.wg.Wait()
	return nil
}

// spawn runs f in a goroutine for which Close waits, unless the link is over.
func (l *Link) spawn(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.wg.Go(f)
	}
}
