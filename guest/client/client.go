package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// Options of a Client; the zero value is ready.
type Options struct {
	// Socket is agentd's; protocol.GuestSocket if empty.
	Socket string
	// Watch is the process whose end ends a child timeline made by a call of
	// this client; this process if 0.
	Watch int
}

// Client makes calls. Close ends its OnResume subscriptions.
type Client struct {
	socket string
	watch  int
	rand   source

	mu     sync.Mutex
	subs   map[*subscription]bool
	seen   uint64 // count of the newest thaw that Rand took
	closed bool
}

// New makes a client; it connects with each call.
func New(opt Options) *Client {
	c := &Client{socket: opt.Socket, watch: opt.Watch, subs: map[*subscription]bool{}}
	if c.socket == "" {
		c.socket = protocol.GuestSocket
	}
	c.rand.seed(nil)
	return c
}

// Close ends all subscriptions and waits for them. Calls go on.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	var subs []*subscription
	for s := range c.subs {
		subs = append(subs, s)
	}
	c.mu.Unlock()
	for _, s := range subs {
		s.stop()
	}
	return nil
}

// connectTime is how long a worker of agentd may take to be there again.
const connectTime = 5 * time.Second

// dial connects; it waits a while for a worker that is being restarted.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	wait := time.Millisecond
	for began := time.Now(); ; {
		conn, err := d.DialContext(ctx, "unix", c.socket)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, cancelled(ctx)
		}
		if time.Since(began) > connectTime {
			return nil, protocol.Errorf(protocol.CodeUnavailable, "connect to the agent at %s: %v; is this a Ratoon guest?", c.socket, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, cancelled(ctx)
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// cancelled is the typed error for the end of ctx, and still matches it.
func cancelled(ctx context.Context) error {
	cause := context.Cause(ctx)
	code := protocol.CodeCancelled
	if errors.Is(cause, context.DeadlineExceeded) {
		code = protocol.CodeTimeout
	}
	return fmt.Errorf("%w: %w", protocol.Errorf(code, "the call was given up"), cause)
}

// call makes one call and stores its result, a pointer, or nothing if nil.
func (c *Client) call(ctx context.Context, kind protocol.CallKind, args, result any) error {
	r, err := c.exchange(ctx, kind, args)
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	if result == nil || len(r.Value) == 0 {
		return nil
	}
	if err := wire.Unmarshal(r.Value, result); err != nil {
		return fmt.Errorf("decode the result of %s: %w", kind, err)
	}
	return nil
}

func (c *Client) exchange(ctx context.Context, kind protocol.CallKind, args any) (protocol.LocalReply, error) {
	req := protocol.LocalRequest{Version: protocol.Version, Kind: kind, Watch: c.watch}
	if args != nil {
		var err error
		if req.Arguments, err = wire.Marshal(args); err != nil {
			return protocol.LocalReply{}, protocol.Errorf(protocol.CodeInvalidArgument, "encode the arguments: %v", err)
		}
	}
	if len(req.Arguments) > protocol.MaxPayload {
		return protocol.LocalReply{}, protocol.Errorf(protocol.CodeTooLarge, "the arguments have %d bytes, at most %d are taken", len(req.Arguments), protocol.MaxPayload)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return protocol.LocalReply{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	// A failed write does not end the call: the agent may have answered
	// before it had read everything.
	writeErr := wire.WriteFrame(conn, req, protocol.MaxMessage)
	var r protocol.LocalReply
	if err := wire.ReadFrame(conn, &r, protocol.MaxMessage); err != nil {
		if ctx.Err() != nil {
			return r, cancelled(ctx)
		}
		return r, lostAgent(errors.Join(writeErr, err))
	}
	if r.Resume != nil {
		c.resumed(*r.Resume)
	}
	if r.Error != nil {
		return r, r.Error
	}
	return r, nil
}

func lostAgent(err error) error {
	return protocol.Errorf(protocol.CodeAgentRestarted, "the agent closed the connection before it answered: %v", err)
}
