package sandbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// inboxSize bounds what a guest can have unread here. Answers beyond it are
// dropped; an honest guest never has that many under way.
const inboxSize = 64

// session is one link to a guest, from its hello on.
type session struct {
	link  Link
	hello *protocol.Hello
	// inbox holds what an operation waits for; calls and acknowledgements of
	// outcomes go to the owner instead.
	inbox chan protocol.Message
	owner atomic.Pointer[timeline]
	done  chan struct{} // closed when nothing more is read

	// Of the holder of the turn.
	clock reading
	pings uint64

	closing sync.Once
}

// dial connects to vm until it answers with a hello, the VM dies or ctx ends.
// The first try is at once.
func (s *Sandbox) dial(ctx context.Context, vm VM) (*session, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		ss, err := s.dialOnce(ctx, vm)
		if err == nil {
			return ss, nil
		}
		if protocol.CodeOf(err) == protocol.CodeVersionMismatch {
			return nil, err
		}
		select {
		case <-vm.Done():
			return nil, fmt.Errorf("the machine ended: %w", causeOf(vm))
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last try: %w)", context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

func causeOf(vm VM) error {
	if err := vm.Err(); err != nil {
		return err
	}
	return protocol.Errorf(protocol.CodeSandboxStopped, "its process exited")
}

func (s *Sandbox) dialOnce(ctx context.Context, vm VM) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeouts.Connect)
	defer cancel()
	began := time.Now()
	link, err := vm.Connect(ctx)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "connect link: %v", err)
	}
	m, err := link.Receive(ctx)
	if err != nil {
		link.Close()
		return nil, protocol.Errorf(protocol.CodeUnavailable, "read hello: %v", err)
	}
	hello, ok := m.(*protocol.Hello)
	if !ok {
		link.Close()
		return nil, protocol.Errorf(protocol.CodeProtocol, "first message is %s, want hello", m.Type())
	}
	if hello.Version != protocol.Version {
		link.Close()
		return nil, protocol.Errorf(protocol.CodeVersionMismatch, "guest speaks protocol %d (release %s), host %d", hello.Version, hello.Release, protocol.Version)
	}
	ss := &session{link: link, hello: hello, clock: read(hello.Clock, began, time.Now()), inbox: make(chan protocol.Message, inboxSize), done: make(chan struct{})}
	s.task(func() { ss.read(s.ctx) })
	return ss, nil
}

// read moves messages to their places until the link or ctx ends.
func (ss *session) read(ctx context.Context) {
	defer close(ss.done)
	for {
		m, err := ss.link.Receive(ctx)
		if err != nil {
			if t := ss.owner.Load(); t != nil {
				t.linkEnded(ss)
			}
			return
		}
		if t := ss.owner.Load(); t != nil && t.took(m) {
			continue
		}
		select {
		case ss.inbox <- m:
		default:
		}
	}
}

// alive tells whether the link still stands.
func (ss *session) alive() bool {
	select {
	case <-ss.done:
		return false
	default:
		return true
	}
}

// await returns the first message that want accepts; others are dropped.
func (ss *session) await(ctx context.Context, want func(protocol.Message) bool) (protocol.Message, error) {
	for {
		select {
		case m := <-ss.inbox:
			if want(m) {
				return m, nil
			}
			continue
		default:
		}
		select {
		case m := <-ss.inbox:
			if want(m) {
				return m, nil
			}
		case <-ss.done:
			select { // what came before the end
			case m := <-ss.inbox:
				if want(m) {
					return m, nil
				}
				continue
			default:
			}
			return nil, protocol.Errorf(protocol.CodeUnavailable, "the link to the guest was lost")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// close ends the link. Not between the pause and the un-pause of its VM.
func (ss *session) close() {
	ss.closing.Do(func() { ss.link.Close() })
	<-ss.done
}
