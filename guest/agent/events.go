package agent

import (
	"context"
	"crypto/rand"
	"net"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// maxEvents is how many thaws a subscriber may be behind; then it misses the
// oldest, which it can tell by Count.
const maxEvents = 16

// subscriber is a program that wants to know of every thaw.
type subscriber struct {
	wake chan struct{} // of size 1

	mu    sync.Mutex
	queue []protocol.ResumeEvent
}

func (s *subscriber) put(e protocol.ResumeEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, e)
	s.queue = s.queue[max(0, len(s.queue)-maxEvents):]
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscriber) take() []protocol.ResumeEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue
	s.queue = nil
	return q
}

// serveEvents sends the newest event at once and then every one.
func (a *Agent) serveEvents(ctx context.Context, conn *net.UnixConn) {
	s := &subscriber{wake: make(chan struct{}, 1)}
	a.mu.Lock()
	a.subs[s] = true
	s.put(a.machine.Event())
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.subs, s)
	}()
	gone := hangup(conn)
	for {
		select {
		case <-s.wake:
		case <-gone:
			return
		case <-ctx.Done():
			return
		}
		for _, e := range s.take() {
			e = freshEvent(e)
			if reply(conn, protocol.LocalReply{Resume: &e}) != nil {
				return
			}
		}
	}
}

// freshEvent gives each reader entropy of its own.
func freshEvent(e protocol.ResumeEvent) protocol.ResumeEvent {
	e.Entropy = make([]byte, 32)
	rand.Read(e.Entropy)
	return e
}
