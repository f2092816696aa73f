package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// Stream is one stream of the bulk connection: frames in both directions, each
// with its own end. One goroutine may send while another receives.
type Stream struct {
	link   *Link
	mux    *yamux.Stream
	closed atomic.Bool

	sendMu sync.Mutex // one frame at a time
	recvMu sync.Mutex // one frame at a time; guards torn
	torn   error      // why the rest of a frame is missing

	in reader
}

func (l *Link) newStream(mux *yamux.Stream) *Stream {
	return &Stream{link: l, mux: mux, in: reader{mux: mux}}
}

// OpenStream opens a stream and sends open as its first frame. At
// protocol.MaxStreams open streams it fails with protocol.CodeBusy.
func (l *Link) OpenStream(ctx context.Context, open protocol.Open) (*Stream, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("open %s stream: %w", open.Op, err)
	}
	if isClosed(l.done) {
		return nil, fmt.Errorf("open %s stream: %w", open.Op, l.over())
	}
	l.openMu.Lock()
	if l.bulk.NumStreams() >= protocol.MaxStreams {
		l.openMu.Unlock()
		return nil, protocol.Errorf(protocol.CodeBusy, "open %s stream: %d streams are open", open.Op, protocol.MaxStreams)
	}
	mux, err := l.bulk.OpenStream()
	l.openMu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("open %s stream: %w", open.Op, l.streamError(l.bulk, err))
	}
	st := l.newStream(mux)
	defer context.AfterFunc(ctx, func() { mux.SetWriteDeadline(past) })()
	if err := wire.WriteFrame(mux, &open, protocol.MaxControlFrame); err != nil {
		st.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("open %s stream: %w", open.Op, l.streamError(l.bulk, err))
	}
	return st, nil
}

// AcceptStream returns the next stream that the peer opened, and what for.
func (l *Link) AcceptStream(ctx context.Context) (protocol.Open, *Stream, error) {
	select {
	case a := <-l.accepted:
		return a.open, a.stream, nil
	case <-ctx.Done():
		return protocol.Open{}, nil, fmt.Errorf("accept stream: %w", context.Cause(ctx))
	case <-l.ctx.Done():
	case <-l.bulk.CloseChan():
	}
	return protocol.Open{}, nil, fmt.Errorf("accept stream: %w", l.over())
}

// takeStream handles a stream that the peer opened. Both ends count all
// streams, each without knowing what the other is opening just now; so twice
// the limit is what cannot be reached by accident.
func (l *Link) takeStream(mux *yamux.Stream) {
	if l.bulk.NumStreams() > 2*protocol.MaxStreams {
		l.fail(violation("more than %d streams", protocol.MaxStreams))
		return
	}
	l.wg.Go(func() { l.readOpen(l.newStream(mux)) })
}

func (l *Link) readOpen(st *Stream) {
	var open protocol.Open
	st.in.setDeadline(time.Now().Add(l.opt.stall()))
	body, _, err := l.readFrame(&st.in, protocol.MaxControlFrame)
	if err == nil {
		err = wire.Unmarshal(body, &open)
	}
	st.in.setDeadline(time.Time{})
	switch {
	case err == nil && open.Op == protocol.OpMessage:
		l.collect(st, open.Message)
		return
	case err == nil:
		select {
		case l.accepted <- accepted{open, st}:
			return
		case <-l.ctx.Done():
		case <-l.bulk.CloseChan():
		}
	case protocol.CodeOf(err) == protocol.CodeProtocol:
		l.fail(fmt.Errorf("read open frame: %w", err))
	case errors.Is(err, yamux.ErrTimeout):
		l.fail(violation("stream without an open frame"))
	}
	st.Close()
}

// refuseStream handles a second stream on the control connection.
func (l *Link) refuseStream(*yamux.Stream) {
	l.fail(violation("second stream on the control connection"))
}

// Send writes v as one data frame. It waits while the peer's window is full.
func (s *Stream) Send(v any) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if err := wire.WriteFrame(s.mux, v, protocol.MaxDataFrame); err != nil {
		return s.link.streamError(s.link.bulk, err)
	}
	return nil
}

// Receive reads the next data frame into the pointer v. It is io.EOF after the
// peer's CloseWrite or Close; the end of the link is another error. After a
// deadline hit in the middle of a frame the stream can only be closed.
func (s *Stream) Receive(v any) error {
	s.recvMu.Lock()
	defer s.recvMu.Unlock()
	if s.torn != nil {
		return s.torn
	}
	body, torn, err := s.link.readFrame(&s.in, protocol.MaxDataFrame)
	if err != nil {
		err = s.link.streamError(s.link.bulk, err)
		if torn {
			s.torn = err
		}
		return err
	}
	return wire.Unmarshal(body, v)
}

// SetDeadline bounds pending and later Sends and Receives; the zero time lifts
// it. They fail with os.ErrDeadlineExceeded.
func (s *Stream) SetDeadline(t time.Time) error {
	s.in.setDeadline(t)
	return s.mux.SetWriteDeadline(t)
}

// CloseWrite says that no more frames will be sent.
func (s *Stream) CloseWrite() error {
	if err := s.mux.Close(); err != nil {
		return fmt.Errorf("close stream: %w", err)
	}
	return nil
}

// Close closes both directions. What the peer still sends is discarded. It may
// be called more than once.
func (s *Stream) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.SetDeadline(time.Time{})
	err := s.mux.Close()
	s.link.spawn(func() { io.Copy(io.Discard, s.mux) })
	return err
}

// streamError maps what yamux says of a stream of s to what the callers of a
// link are promised. yamux reports the end of its session as the end of each
// stream.
func (l *Link) streamError(s *yamux.Session, err error) error {
	switch {
	case errors.Is(err, yamux.ErrTimeout):
		return os.ErrDeadlineExceeded
	case errors.Is(err, yamux.ErrConnectionWriteTimeout):
		err = protocol.Errorf(protocol.CodeTimeout, "the other end took no data for %v", l.opt.stall())
		l.fail(err)
		return err
	case s.IsClosed() && protocol.CodeOf(err) == protocol.CodeInternal:
		return l.over()
	case errors.Is(err, yamux.ErrConnectionReset), errors.Is(err, yamux.ErrStreamClosed):
		return fmt.Errorf("%w (%w)", protocol.Errorf(protocol.CodeUnavailable, "stream is closed"), net.ErrClosed)
	}
	return err
}
