package link

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// resendInterval is how often the host repeats its SYN. One may be lost in
// front of a guest that has not opened its port yet.
const resendInterval = 250 * time.Millisecond

func newNonce() (n nonce) {
	rand.Read(n[:])
	return n
}

// greeting is the state of a handshake on one raw connection. The reader runs
// in the caller's goroutine, writes go through one writer goroutine, so that
// two ends that both begin by writing never wait for each other.
type greeting struct {
	raw     net.Conn
	br      *bufio.Reader
	own     hello         // the SYN of this end
	resend  time.Duration // 0: never
	started chan struct{} // closed when the first SYN is out
	stop    chan struct{} // closed when no record will be queued any more
	flushed chan struct{} // closed when the writer has ended

	mu    sync.Mutex
	queue [][]byte // ACKs to be written
	wake  chan struct{}
	err   error // of the writer
}

// shake performs the handshake on raw and returns the record connection, or
// the reason why there is none; raw is not closed. A guest waits until its SYN
// is out before it reads: on virtio-serial a read without a host returns at
// once, a write waits for one.
func shake(ctx context.Context, raw net.Conn, link nonce, opt Options) (*recordConn, error) {
	g := &greeting{
		raw: raw, br: bufio.NewReaderSize(raw, maxRecord),
		own:     hello{typ: recordSYN, link: link, own: newNonce()},
		started: make(chan struct{}), stop: make(chan struct{}), flushed: make(chan struct{}),
		wake: make(chan struct{}, 1),
	}
	if opt.host {
		g.resend = resendInterval
	}
	interrupt := context.AfterFunc(ctx, func() { raw.SetDeadline(past) })
	go g.write()
	peer, err := g.read(ctx, !opt.host)
	close(g.stop)
	if !interrupt() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		raw.SetDeadline(past)
		<-g.flushed
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	return newRecordConn(g, peer, opt), nil
}

// read returns the peer's ACK of our nonce.
func (g *greeting) read(ctx context.Context, afterWrite bool) (hello, error) {
	if afterWrite {
		select {
		case <-g.started:
		case <-g.flushed:
			return hello{}, g.err
		case <-ctx.Done():
			return hello{}, context.Cause(ctx)
		}
	}
	var acked nonce
	for consumed := 0; ; {
		h, n, err := g.next()
		if err != nil {
			return hello{}, fmt.Errorf("await handshake: %w", err)
		}
		if consumed += n; consumed > maxDiscard {
			return hello{}, violation("no handshake within %d bytes", maxDiscard)
		}
		if h.typ == 0 {
			continue
		}
		mine := h.typ == recordACK && h.seen == g.own.own
		if h.typ == recordSYN || mine && h.own != acked {
			g.enqueue(hello{typ: recordACK, link: g.own.link, own: g.own.own, seen: h.own}.record())
			acked = h.own
		}
		if mine {
			return h, nil
		}
	}
}

// next finds the next SYN or ACK and says how many bytes it consumed; at most
// about one buffer's length, with a zero hello when there was none in it.
func (g *greeting) next() (h hello, consumed int, err error) {
	for consumed < maxRecord {
		if _, err := g.br.Peek(1); err != nil {
			return h, consumed, noEOF(err)
		}
		b, _ := g.br.Peek(g.br.Buffered())
		h, need := parseHello(b)
		switch {
		case h.typ != 0:
			g.br.Discard(need)
			return h, consumed + need, nil
		case need > len(b):
			if _, err := g.br.Peek(need); err != nil {
				return h, consumed, noEOF(err)
			}
		default:
			g.br.Discard(1)
			consumed++
		}
	}
	return hello{}, consumed, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (g *greeting) enqueue(record []byte) {
	g.mu.Lock()
	// The peer repeats a SYN only on a timer, so more than a few waiting ACKs
	// mean a flood; the newest one is what counts.
	if len(g.queue) == 4 {
		g.queue = g.queue[1:]
	}
	g.queue = append(g.queue, record)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// write sends SYN, repeats it, and sends queued ACKs until stop, and then what
// is still queued.
func (g *greeting) write() {
	defer close(g.flushed)
	if _, g.err = g.raw.Write(g.own.record()); g.err != nil {
		return
	}
	close(g.started)
	var tick <-chan time.Time
	if g.resend > 0 {
		t := time.NewTicker(g.resend)
		defer t.Stop()
		tick = t.C
	}
	for {
		last := false
		select {
		case <-g.stop:
			last = true
		case <-g.wake:
		case <-tick:
			if _, g.err = g.raw.Write(g.own.record()); g.err != nil {
				return
			}
		}
		g.mu.Lock()
		queue := g.queue
		g.queue = nil
		g.mu.Unlock()
		for _, r := range queue {
			if _, g.err = g.raw.Write(r); g.err != nil {
				return
			}
		}
		if last {
			return
		}
	}
}

// past is a deadline that interrupts whatever waits.
var past = time.Unix(1, 0)
