package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/vsock"

	"github.com/ratoon-project/ratoon/protocol"
)

var _ Carrier = (*Listener)(nil)

// Listener is the guest's end of a link over sockets.
type Listener struct {
	control, bulk *acceptor
}

// ListenVsock listens on both AF_VSOCK ports. Connections from other contexts
// than peers, by default the host alone, are closed: with a loopback transport
// a program of the guest could reach the ports too.
func ListenVsock(peers ...uint32) (*Listener, error) {
	if len(peers) == 0 {
		peers = []uint32{vsock.Host}
	}
	allow := func(c net.Conn) bool {
		a, ok := c.RemoteAddr().(*vsock.Addr)
		return ok && a != nil && slices.Contains(peers, a.ContextID)
	}
	control, err := vsock.Listen(protocol.PortControl, nil)
	if err != nil {
		return nil, fmt.Errorf("listen for links: %w", err)
	}
	bulk, err := vsock.Listen(protocol.PortBulk, nil)
	if err != nil {
		return nil, fmt.Errorf("listen for links: %w", errors.Join(err, control.Close()))
	}
	return &Listener{&acceptor{l: control, allow: allow}, &acceptor{l: bulk, allow: allow}}, nil
}

// ListenUnix listens on two unix sockets, for a guest that is no machine.
func ListenUnix(controlPath, bulkPath string) (*Listener, error) {
	control, err := net.ListenUnix("unix", &net.UnixAddr{Name: controlPath, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for links: %w", err)
	}
	bulk, err := net.ListenUnix("unix", &net.UnixAddr{Name: bulkPath, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for links: %w", errors.Join(err, control.Close()))
	}
	all := func(net.Conn) bool { return true }
	return &Listener{&acceptor{l: control, allow: all}, &acceptor{l: bulk, allow: all}}, nil
}

// Open waits for a host to connect for ch.
func (l *Listener) Open(ctx context.Context, ch Channel) (net.Conn, error) {
	if ch == Bulk {
		return l.bulk.accept(ctx)
	}
	return l.control.accept(ctx)
}

// Close ends waiting Opens with net.ErrClosed.
func (l *Listener) Close() error {
	return errors.Join(l.control.l.Close(), l.bulk.l.Close())
}

// deadlineListener is what vsock.Listener and net.UnixListener have in common.
type deadlineListener interface {
	net.Listener
	SetDeadline(time.Time) error
}

// acceptor accepts with a context.
type acceptor struct {
	l     deadlineListener
	allow func(net.Conn) bool
	mu    sync.Mutex // one accept at a time owns the deadline
}

func (a *acceptor) accept(ctx context.Context) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		conn, err := a.acceptAny(ctx)
		if err != nil || a.allow(conn) {
			return conn, err
		}
		conn.Close()
	}
}

func (a *acceptor) acceptAny(ctx context.Context) (net.Conn, error) {
	if err := a.l.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		a.l.SetDeadline(past)
		close(interrupted)
	})
	conn, err := a.l.Accept()
	if !stop() {
		<-interrupted // so that it does not hit the next accept
		if err == nil {
			conn.Close()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return conn, nil
}
