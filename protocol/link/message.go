package link

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// pieceLen is how much of a long message goes into one data frame.
const pieceLen = 512 << 10

// outFrame is one frame for the control stream on its way to sendLoop.
type outFrame struct {
	frame []byte
	done  chan error // buffered
}

type longMessage struct {
	n    uint64
	body []byte
}

// Send writes one message and returns when its bytes have been given to the
// carrier. A message over protocol.MaxControlFrame travels in pieces on the
// bulk connection; others may overtake it until Send returns. When ctx ends
// first, the message may or may not arrive, and the link stays usable.
func (l *Link) Send(ctx context.Context, m protocol.Message) error {
	body, err := wire.EncodeMessage(m)
	if err != nil {
		return err
	}
	switch n := len(body); {
	case n > protocol.MaxMessage:
		return protocol.Errorf(protocol.CodeTooLarge, "message %s of %d bytes is over the limit of %d", m.Type(), n, protocol.MaxMessage)
	case n > protocol.MaxControlFrame:
		err = l.sendLong(ctx, body)
	default:
		err = l.sendFrame(ctx, ctx, body)
	}
	if err != nil {
		return fmt.Errorf("send %s: %w", m.Type(), err)
	}
	return nil
}

// sendFrame hands body to sendLoop while turn lasts, and waits for it while
// wait lasts.
func (l *Link) sendFrame(turn, wait context.Context, body []byte) error {
	if isClosed(l.done) {
		return l.over()
	}
	f := &outFrame{frame: make([]byte, 4, 4+len(body)), done: make(chan error, 1)}
	binary.BigEndian.PutUint32(f.frame, uint32(len(body)))
	f.frame = append(f.frame, body...)
	select {
	case l.outbound <- f:
	case <-turn.Done():
		return context.Cause(turn)
	case <-l.ctx.Done():
		return l.over()
	case <-l.control.CloseChan():
		return l.over()
	}
	select {
	case err := <-f.done:
		return err
	case <-wait.Done():
		return context.Cause(wait)
	}
}

// sendLoop writes to the control stream. It is one goroutine, so that a sender
// whose context ends does not leave half a frame.
func (l *Link) sendLoop() {
	for {
		select {
		case f := <-l.outbound:
			if _, err := l.stream.Write(f.frame); err != nil {
				f.done <- l.streamError(l.control, err)
				continue
			}
			f.done <- nil
		case <-l.control.CloseChan():
			return
		}
	}
}

// sendLong sends body on a stream of its own and then its number on the
// control stream, which gives it its place in the order of messages.
func (l *Link) sendLong(ctx context.Context, body []byte) error {
	select {
	case l.longTurn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.ctx.Done():
		return l.over()
	}
	defer func() { <-l.longTurn }()
	l.longSent++
	if err := l.sendPieces(ctx, l.longSent, body); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	mark, err := wire.EncodeMessage(&protocol.Long{N: l.longSent})
	if err != nil {
		return err
	}
	// The peer holds the message until it sees the mark: ctx no longer counts.
	return l.sendFrame(l.ctx, l.ctx, mark)
}

func (l *Link) sendPieces(ctx context.Context, n uint64, body []byte) error {
	st, err := l.OpenStream(ctx, protocol.Open{Op: protocol.OpMessage, Message: n})
	if err != nil {
		return err
	}
	defer st.Close()
	defer context.AfterFunc(ctx, func() { st.SetDeadline(past) })()
	for len(body) > 0 {
		k := min(len(body), pieceLen)
		p := protocol.Piece{Data: body[:k], Last: k == len(body)}
		if err := st.Send(&p); err != nil {
			return err
		}
		body = body[k:]
	}
	return nil
}

// Receive returns the next message. It is io.EOF after the peer's END, once
// all messages before it were returned, and after End. A ctx that ends costs
// no message.
func (l *Link) Receive(ctx context.Context) (protocol.Message, error) {
	select {
	case m, ok := <-l.inbound:
		if ok {
			return m, nil
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if isClosed(l.conns.control.ended) {
		return nil, io.EOF
	}
	<-l.done
	return nil, l.Err()
}

// receiveLoop reads messages until the control stream is at its end.
func (l *Link) receiveLoop() {
	defer close(l.inbound)
	in := reader{mux: l.stream}
	for {
		body, _, err := l.readFrame(&in, protocol.MaxControlFrame)
		if err != nil {
			if !l.control.IsClosed() {
				l.fail(fmt.Errorf("read message: %w", streamFailure(err)))
			}
			return
		}
		m, err := wire.DecodeMessage(body)
		if mark, ok := m.(*protocol.Long); ok {
			m, err = l.claim(mark.N)
		}
		if err != nil {
			l.fail(fmt.Errorf("read message: %w", err))
			return
		}
		select {
		case l.inbound <- m:
		case <-l.ctx.Done():
			return
		}
	}
}

// streamFailure types the end of the control stream in a session that lives.
func streamFailure(err error) error {
	if protocol.CodeOf(err) == protocol.CodeInternal {
		return violation("control stream: %v", err)
	}
	return err
}

// claim takes the long message n, all of whose pieces were sent before the
// mark that is being handled.
func (l *Link) claim(n uint64) (protocol.Message, error) {
	timer := time.NewTimer(l.opt.stall())
	defer timer.Stop()
	select {
	case long := <-l.longDone:
		if long.n != n {
			return nil, violation("long message %d where %d was announced", long.n, n)
		}
		m, err := wire.DecodeMessage(long.body)
		if _, nested := m.(*protocol.Long); nested {
			return nil, violation("mark of a long message in a long message")
		}
		return m, err
	case <-timer.C:
		return nil, violation("long message %d was announced and did not come", n)
	case <-l.ctx.Done():
		return nil, l.over()
	}
}

// collect puts a long message together. At most one is held at a time; the
// streams of others wait for their turn with their windows full. A stream that
// ends early was given up by its sender.
func (l *Link) collect(st *Stream, n uint64) {
	defer st.Close()
	select {
	case l.longSlot <- struct{}{}:
	case <-l.ctx.Done():
		return
	}
	defer func() { <-l.longSlot }()
	var body []byte
	for {
		var p protocol.Piece
		if err := st.Receive(&p); err != nil {
			if protocol.CodeOf(err) == protocol.CodeProtocol {
				l.fail(fmt.Errorf("read long message: %w", err))
			}
			return
		}
		if len(body)+len(p.Data) > protocol.MaxMessage {
			l.fail(violation("long message over the limit of %d bytes", protocol.MaxMessage))
			return
		}
		body = append(body, p.Data...)
		if p.Last {
			break
		}
	}
	select {
	case l.longDone <- longMessage{n, body}:
	case <-l.ctx.Done():
	}
}
