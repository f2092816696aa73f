package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// pair is the two connections of a link after their handshakes.
type pair struct {
	control, bulk *recordConn
}

// opened is the outcome of open for one channel.
type opened struct {
	ch   Channel
	conn *recordConn
	err  error
}

// establish opens both connections and makes sure that the same peer is behind
// both: when the peer started anew between the two handshakes, the older
// connection is opened again.
func establish(ctx context.Context, c Carrier, opt Options) (pair, error) {
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	id := newNonce()
	results := make(chan opened)
	start := func(ch Channel) {
		conn, err := open(ctx, c, ch, id, opt)
		results <- opened{ch, conn, err}
	}
	go start(Control)
	go start(Bulk)
	var older opened
	for running := 2; ; {
		r := <-results
		running--
		if r.err != nil {
			cancel()
			if older.conn != nil {
				older.conn.Close()
			}
			for ; running > 0; running-- {
				other := <-results
				if other.conn != nil {
					other.conn.Close()
				} else if other.ch == Control && caller.Err() != nil {
					r = other // both ran out of time; control comes first
				}
			}
			return pair{}, r.err
		}
		if older.conn == nil {
			older = r
			continue
		}
		if older.conn.peer.link == r.conn.peer.link {
			if r.ch == Control {
				return pair{r.conn, older.conn}, nil
			}
			return pair{older.conn, r.conn}, nil
		}
		opt.log().Debug("connections of two links met", "older", string(older.ch))
		older.conn.Close()
		go start(older.ch)
		running++
		older = r
	}
}

// open tries to get one connection through its handshake until ctx ends or
// trying again cannot help.
func open(ctx context.Context, c Carrier, ch Channel, id nonce, opt Options) (*recordConn, error) {
	const most = 50 * time.Millisecond
	for pause := time.Millisecond; ; pause = min(2*pause, most) {
		conn, err := attempt(ctx, c, ch, id, opt)
		if err == nil {
			return conn, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, unavailable(cause, err)
		}
		if permanent(err) {
			return nil, err
		}
		opt.log().Debug("connection failed", "channel", string(ch), "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, unavailable(context.Cause(ctx), err)
		}
	}
}

func attempt(ctx context.Context, c Carrier, ch Channel, id nonce, opt Options) (*recordConn, error) {
	raw, err := c.Open(ctx, ch)
	if err != nil {
		return nil, fmt.Errorf("open %s connection: %w", ch, err)
	}
	conn, err := shake(ctx, raw, id, opt)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("greet the agent on the %s connection: %w", ch, err)
	}
	return conn, nil
}

// permanent tells errors that another attempt would only repeat.
func permanent(err error) bool {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) || errors.Is(err, fs.ErrPermission) {
		return true
	}
	e, ok := errors.AsType[*protocol.Error](err)
	return ok && e.Code == protocol.CodeProtocol
}

// unavailable is the error of a time that is over: it names the stage that was
// reached and wraps the cause.
func unavailable(cause, last error) error {
	text := last.Error()
	if !errors.Is(last, cause) {
		text += ": " + cause.Error()
	}
	return &stageError{protocol.Errorf(protocol.CodeUnavailable, "%s", text), cause}
}

type stageError struct {
	stage *protocol.Error
	cause error
}

func (e *stageError) Error() string   { return e.stage.Message }
func (e *stageError) Unwrap() []error { return []error{e.stage, e.cause} }
