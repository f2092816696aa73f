package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Link is a connection to the host; a *link.Link behind Carrier.
type Link interface {
	Send(ctx context.Context, m protocol.Message) error
	Receive(ctx context.Context) (protocol.Message, error)
	AcceptStream(ctx context.Context) (protocol.Open, Stream, error)
	// End closes the link with the end record; nothing is written after it.
	End() error
	Close() error
}

// Accept waits for the host's next link.
type Accept func(ctx context.Context) (Link, error)

// serveLinks serves one link after another, for ever: each capture ends one.
func (a *Agent) serveLinks(ctx context.Context) {
	wait := time.Duration(0)
	for n := 1; ctx.Err() == nil; n++ {
		l, err := a.cfg.Accept(ctx)
		if err != nil {
			a.log.Debug("no link yet", keyLink, n, keyError, err)
			wait = min(max(2*wait, time.Millisecond), time.Second)
			sleep(ctx, wait)
			continue
		}
		wait = 0
		a.log.Debug("link up", keyLink, n)
		err = a.serveLink(ctx, l)
		a.log.Debug("link down", keyLink, n, keyError, err)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// serveLink says hello and takes the host's messages in their order until the
// link ends.
func (a *Agent) serveLink(ctx context.Context, l Link) error {
	ctx, cancel := context.WithCancel(ctx)
	out := newOutbox()
	var tasks sync.WaitGroup
	tasks.Go(func() {
		defer cancel() // the end of the queue is the end of the link
		out.run(ctx, l, a.uncharge)
	})
	tasks.Go(func() { a.serveStreams(ctx, l) })
	a.step(func(m *Machine) []Effect {
		a.out = out
		return m.LinkUp()
	})

	var err error
	for err == nil {
		var msg protocol.Message
		if msg, err = l.Receive(ctx); err == nil {
			a.step(func(m *Machine) []Effect { return m.Receive(msg) })
		}
	}
	a.step(func(m *Machine) []Effect {
		a.out = nil
		return m.LinkDown()
	})
	cancel()
	if out.finished() {
		err = l.End() // how the link broke after that says nothing
	}
	err = errors.Join(err, l.Close())
	tasks.Wait()
	return err
}

// maxQueued is more than a host that reads its link can leave unread: every
// pending call, their endings, and answers to what it sent.
const maxQueued = 4 * protocol.MaxPendingCalls

// outbox queues messages for a link, so that a host that does not read delays
// nobody.
type outbox struct {
	wake chan struct{} // of size 1

	mu     sync.Mutex
	queue  []protocol.Message
	last   bool // the end record follows the queue
	done   bool // all before the end record is written
	broken bool // the host does not read
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) put(m protocol.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last {
		return
	}
	o.queue = append(o.queue, m)
	o.broken = o.broken || len(o.queue) > maxQueued
	o.signal()
}

// end lets the end record follow what is queued; later messages are dropped.
func (o *outbox) end() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = true
	o.signal()
}

// finished tells whether all is written that goes before the end record.
func (o *outbox) finished() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run writes until the queue is at its end or an error; sent is told of each
// message.
func (o *outbox) run(ctx context.Context, l Link, sent func(protocol.Message)) {
	for {
		batch, last, broken := o.take()
		for _, m := range batch {
			if broken || l.Send(ctx, m) != nil {
				l.Close()
				return
			}
			sent(m)
		}
		if last {
			o.mu.Lock()
			o.done = true
			o.mu.Unlock()
			return
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (o *outbox) take() (batch []protocol.Message, last, broken bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch, o.queue = o.queue, nil
	return batch, o.last, o.broken
}
