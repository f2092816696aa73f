package client

import (
	"context"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// Event tells why and how long the machine was stopped.
type Event struct {
	Reason   protocol.ResumeReason
	Timeline protocol.TimelineID
	Node     string
	Slept    time.Duration
	Lost     []string
	Count    uint64 // of thaws so far
}

type subscription struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (s *subscription) stop() {
	s.cancel()
	<-s.done
}

// OnResume calls back after every thaw, one at a time and in order, until stop
// is called, which waits for a callback that runs (so a callback must not call
// it). A subscriber that is far
// behind misses the oldest events, which Count shows. It fails if the agent
// cannot be reached.
func (c *Client) OnResume(ctx context.Context, callback func(Event)) (stop func(), err error) {
	ready := make(chan error, 1)
	run, cancel := context.WithCancel(context.Background())
	s := &subscription{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		cancel()
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the client is closed")
	}
	c.subs[s] = true
	c.mu.Unlock()
	go func() {
		defer close(s.done)
		c.follow(run, callback, ready)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subs, s)
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = cancelled(ctx)
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s.stop, nil
}

// follow reads events until ctx ends; it connects again when the agent was
// restarted. What it heard first is the present state, not an event.
func (c *Client) follow(ctx context.Context, callback func(Event), ready chan<- error) {
	var last uint64
	first := true
	for ctx.Err() == nil {
		err := c.readEvents(ctx, func(e protocol.ResumeEvent) {
			known := first || e.Count <= last
			if first {
				first = false
				ready <- nil
			}
			last = max(last, e.Count)
			if known {
				return
			}
			c.resumed(e)
			callback(Event{
				Reason: e.Reason, Timeline: e.Timeline, Node: e.Node,
				Slept: time.Duration(e.Slept), Lost: e.Lost, Count: e.Count,
			})
		})
		if first {
			ready <- err
			return
		}
		select {
		case <-time.After(reconnect):
		case <-ctx.Done():
		}
	}
}

// reconnect is the pause before a lost subscription is made again.
const reconnect = 10 * time.Millisecond

func (c *Client) readEvents(ctx context.Context, take func(protocol.ResumeEvent)) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	req := protocol.LocalRequest{Version: protocol.Version, Kind: protocol.LocalEvents}
	if err := wire.WriteFrame(conn, req, protocol.MaxMessage); err != nil {
		return lostAgent(err)
	}
	for {
		var r protocol.LocalReply
		if err := wire.ReadFrame(conn, &r, protocol.MaxMessage); err != nil {
			return lostAgent(err)
		}
		if r.Error != nil {
			return r.Error
		}
		if r.Resume != nil {
			take(*r.Resume)
		}
	}
}

// resumed reseeds Rand, once per thaw.
func (c *Client) resumed(e protocol.ResumeEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Count <= c.seen {
		return
	}
	c.seen = e.Count
	c.rand.seed(&e)
}
