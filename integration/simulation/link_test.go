package simulation_test

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// link carries messages in order. Those under way are lost with it.
type link struct {
	host *daemon
	vm   *vm

	toGuest []protocol.Message
	fresh   int                // how many of them were sent since the last step
	toHost  []protocol.Message // nil: the end record
	hung    bool               // the host has closed its end: nothing follows toGuest
	sealed  bool               // the guest has written the end record
	down    bool               // the guest knows that it is over

	mu     sync.Mutex // guards what follows: what has arrived at the host
	inbox  []protocol.Message
	ended  bool
	broken bool
	news   chan struct{} // of size 1
	done   chan struct{}
}

var _ sandbox.Link = (*link)(nil)

var errLink = protocol.Errorf(protocol.CodeUnavailable, "the link is broken")

func (l *link) Send(_ context.Context, m protocol.Message) error {
	w := l.vm.world
	w.mu.Lock()
	dead := l.host.dead
	w.mu.Unlock()
	if dead {
		return errKilled
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken || l.hung {
		return errLink
	}
	if l.vm.paused {
		w.fail("%v is paused, and %s is sent to it", l.vm, m.Type())
	}
	w.rules.sent(l.vm, m)
	l.toGuest = append(l.toGuest, m)
	l.fresh++
	w.wakeUp()
	return nil
}

// order gives the messages of one step an order that does not depend on which
// goroutine came first. None sends two in a step.
func (l *link) order() {
	tail := l.toGuest[max(0, len(l.toGuest)-l.fresh):]
	l.fresh = 0
	slices.SortStableFunc(tail, func(a, b protocol.Message) int {
		if n := cmp.Compare(a.Type(), b.Type()); n != 0 {
			return n
		}
		x, ok := a.(*protocol.Outcome)
		if !ok {
			return 0
		}
		y := b.(*protocol.Outcome)
		return cmp.Or(cmp.Compare(x.Key.Start, y.Key.Start), cmp.Compare(x.Key.Sequence, y.Key.Sequence))
	})
}

func (l *link) Receive(ctx context.Context) (protocol.Message, error) {
	for {
		l.mu.Lock()
		switch {
		case len(l.inbox) > 0:
			m := l.inbox[0]
			l.inbox = l.inbox[1:]
			l.mu.Unlock()
			return m, nil
		case l.ended:
			l.mu.Unlock()
			return nil, io.EOF
		case l.broken:
			l.mu.Unlock()
			return nil, errLink
		}
		l.mu.Unlock()
		select {
		case <-l.news:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// AwaitEnd sees the end when the reader of the link has come to it.
func (l *link) AwaitEnd(ctx context.Context) error {
	select {
	case <-l.done:
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ended {
			return nil
		}
		return errLink
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *link) Done() <-chan struct{} { return l.done }

func (l *link) Close() error {
	w := l.vm.world
	w.mu.Lock()
	dead := l.host.dead
	w.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !dead && !l.hung && !l.broken && !l.ended && l.vm.paused && !l.vm.dead {
		w.fail("%v is paused, and its link is closed", l.vm)
	}
	l.hung = true
	l.over(false)
	return nil
}

// hangUp is what the kernel does to the links of a killed daemon.
func (l *link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hung = true
	l.over(false)
}

// over ends the host's end. l.mu is held.
func (l *link) over(ended bool) {
	if l.ended || l.broken {
		return
	}
	l.ended, l.broken = ended, !ended
	close(l.done)
	l.tell()
}

func (l *link) tell() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// arrive brings the first message under way to the host.
func (l *link) arrive() {
	m := l.toHost[0]
	l.toHost = l.toHost[1:]
	l.mu.Lock()
	defer l.mu.Unlock()
	if m == nil {
		l.over(true)
	} else if !l.broken {
		if c, ok := m.(*protocol.Call); ok {
			l.vm.world.rules.received[c.Key] = l.host.number + 1
		}
		l.inbox = append(l.inbox, m)
		l.tell()
	}
}

// cut loses the link and all that is under way on it.
func (l *link) cut() {
	l.mu.Lock()
	l.over(false)
	l.mu.Unlock()
	l.toHost = nil
	l.toGuest = nil
	l.guestDown()
}

// guestDown tells the guest that the link is over.
func (l *link) guestDown() {
	if !l.down {
		l.down = true
		l.vm.world.rules.lostLinks++
		if !l.vm.dead {
			l.vm.guest.linkDown()
		}
	}
}

// write is the guest's side.
func (l *link) write(m protocol.Message) {
	if !l.down && !l.sealed {
		l.toHost = append(l.toHost, m)
	}
}

// seal writes the end record; nothing is written after it.
func (l *link) seal() {
	if !l.down && !l.sealed {
		l.sealed = true
		l.toHost = append(l.toHost, nil)
	}
}
