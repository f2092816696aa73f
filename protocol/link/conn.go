package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// errEnded is what a write after END gets; the multiplexer takes it as the end
// of its connection.
var errEnded = errors.New("link has ended")

// recordConn is a raw connection after its handshake: an io.ReadWriteCloser
// for a yamux session, whose bytes travel in DATA records.
//
// One goroutine reads, one writes; stop and Close may be called at any time.
type recordConn struct {
	raw   net.Conn
	stall time.Duration
	peer  hello
	ready <-chan struct{} // closed when the handshake's last record is out
	hello *greeting

	// Of the reader.
	br       *bufio.Reader
	left     int // bytes left of the current record
	began    bool
	guard    muxGuard
	deadline bool // a read deadline is set

	ended   chan struct{} // closed when END was read
	readEnd chan struct{} // closed when a read has failed
	closing chan struct{} // closed by Close
	once    sync.Once     // of Close
	readErr atomic.Pointer[error]
	rmu     sync.Mutex  // held over Close and a change of the read deadline
	stopped atomic.Bool // by stop

	// wmu is held across a write to the raw connection, which has a deadline.
	wmu    sync.Mutex
	out    []byte // record header, and room for a payload
	held   int    // bytes of a multiplexer's header that wait for their body
	closed error  // what later writes get
}

func newRecordConn(g *greeting, peer hello, opt Options) *recordConn {
	return &recordConn{
		raw: g.raw, stall: opt.stall(), peer: peer,
		ready: g.flushed, hello: g, br: g.br,
		ended: make(chan struct{}), readEnd: make(chan struct{}), closing: make(chan struct{}),
		guard: muxGuard{host: !opt.host},
		out:   make([]byte, recordHeader, recordHeader+muxHeader+4<<10),
	}
}

// Read returns bytes of DATA records, io.EOF after END.
func (c *recordConn) Read(p []byte) (int, error) {
	n, err := c.read(p)
	if err == nil {
		err = c.guard.see(p[:n])
	}
	if err != nil {
		if c.readErr.CompareAndSwap(nil, &err) {
			close(c.readEnd)
		}
		return 0, err
	}
	return n, nil
}

func (c *recordConn) read(p []byte) (int, error) {
	for c.left == 0 {
		if err := c.nextRecord(); err != nil {
			return 0, err
		}
	}
	if c.br.Buffered() == 0 {
		c.expect(true)
	}
	n, err := c.br.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, c.readFailure(err)
}

// expect bounds the wait for the rest of something that has begun. A read may
// wait for ever only between two frames.
func (c *recordConn) expect(rest bool) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if isClosed(c.closing) {
		return
	}
	if rest {
		c.raw.SetReadDeadline(time.Now().Add(c.stall))
	} else if c.deadline {
		c.raw.SetReadDeadline(time.Time{})
	}
	c.deadline = rest
}

func (c *recordConn) nextRecord() error {
	if c.br.Buffered() == 0 {
		c.expect(c.guard.inside())
		if _, err := c.br.Peek(1); err != nil {
			return c.readFailure(err)
		}
	}
	if c.br.Buffered() < recordHeader {
		c.expect(true)
	}
	head, err := c.br.Peek(recordHeader)
	if err != nil {
		return c.readFailure(err)
	}
	typ, n := head[0], int(binary.BigEndian.Uint32(head)&0xffffff)
	switch {
	case typ == recordDATA && n > 0 && n <= maxRecord:
		c.br.Discard(recordHeader)
		c.left, c.began = n, true
		return nil
	case typ == recordEND && n == 0:
		c.br.Discard(recordHeader)
		if c.guard.inside() || c.br.Buffered() > 0 {
			return violation("end record in the middle of data")
		}
		close(c.ended)
		return io.EOF
	case (typ == recordSYN || typ == recordACK) && n == helloLen(typ)-recordHeader:
		return c.repeated(typ)
	}
	return violation("record of type %#02x and %d bytes", typ, n)
}

// repeated skips a SYN or ACK that the peer sent again before it knew that the
// handshake was over. From anyone else it means that the peer has started anew.
func (c *recordConn) repeated(typ byte) error {
	c.expect(true)
	b, err := c.br.Peek(helloLen(typ))
	if err != nil {
		return c.readFailure(err)
	}
	h, _ := parseHello(b)
	if c.began || h.typ == 0 || h.own != c.peer.own {
		return errRestarted
	}
	c.br.Discard(len(b))
	return nil
}

var errRestarted = protocol.Errorf(protocol.CodeUnavailable, "the other end has started a new link")

func (c *recordConn) readFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimeout, "the other end stalled in the middle of a frame")
	case errors.Is(err, io.EOF):
		return protocol.Errorf(protocol.CodeUnavailable, "connection closed by the other end")
	}
	return err
}

// Write sends p in DATA records. yamux writes the header of a data frame and
// its body separately; the header is held back and goes with the body, so that
// a small message is one write to the carrier.
func (c *recordConn) Write(p []byte) (int, error) {
	<-c.ready
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.closed == nil && c.hello.err != nil {
		c.closed = c.hello.err
	}
	if c.closed != nil {
		return 0, c.closed
	}
	if c.held == 0 && isDataHeader(p) {
		c.out = append(c.out[:recordHeader], p...)
		c.held = len(p)
		return len(p), nil
	}
	c.raw.SetWriteDeadline(time.Now().Add(c.stall))
	total := len(p)
	for first := true; first || len(p) > 0; first = false {
		n := min(len(p), maxRecord-c.held)
		c.out = append(c.out[:recordHeader+c.held], p[:n]...)
		c.held, p = 0, p[n:]
		if err := c.writeOut(); err != nil {
			return 0, err
		}
	}
	return total, nil
}

// writeOut sends c.out as one record. Called with wmu held.
func (c *recordConn) writeOut() error {
	putHeader(c.out, recordDATA, len(c.out)-recordHeader)
	_, err := c.raw.Write(c.out)
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = protocol.Errorf(protocol.CodeTimeout, "the other end took no data for %v", c.stall)
	} else {
		// The peer may have ended the link and closed: its last bytes are
		// still to be read, and an error here would stop the reader.
		select {
		case <-c.readEnd:
		case <-c.closing:
		}
	}
	c.closed = err
	return err
}

// stop lets every later write fail, and Close keep the raw connection open.
// A header that waits for its body is dropped. It is an error when a record
// could not be completed before.
func (c *recordConn) stop() error {
	<-c.ready
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.closed == nil {
		c.closed = errEnded
		c.stopped.Store(true)
	}
	if !errors.Is(c.closed, errEnded) {
		return c.closed
	}
	return nil
}

// delayer is a raw connection that writes END itself, at a better time.
type delayer interface {
	end(record []byte, stall time.Duration)
}

// end writes END. It follows stop and Close.
func (c *recordConn) end() error {
	record := make([]byte, recordHeader)
	putHeader(record, recordEND, 0)
	if p, ok := c.raw.(delayer); ok {
		p.end(record, c.stall)
		return nil
	}
	c.raw.SetWriteDeadline(time.Now().Add(c.stall))
	_, err := c.raw.Write(record)
	return err
}

// Close interrupts a pending read and write and closes the raw connection,
// after stop but for that.
func (c *recordConn) Close() error {
	var err error
	c.once.Do(func() {
		c.rmu.Lock()
		defer c.rmu.Unlock()
		close(c.closing)
		if c.stopped.Load() {
			err = c.raw.SetReadDeadline(past)
		} else {
			err = c.raw.Close()
		}
	})
	<-c.ready
	return err
}

// failure is why reading or writing stopped, nil if nothing went wrong.
// Called when both have stopped.
func (c *recordConn) failure() error {
	if p := c.readErr.Load(); p != nil {
		if errors.Is(*p, io.EOF) {
			return nil
		}
		if !errors.Is(*p, net.ErrClosed) {
			return *p
		}
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if errors.Is(c.closed, errEnded) || errors.Is(c.closed, net.ErrClosed) {
		return nil
	}
	return c.closed
}
