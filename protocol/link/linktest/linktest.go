// Package linktest makes links without a machine, for tests.
//
//	host, guest := linktest.Pair(t)           // two ends of one link
//	hostCarrier, guestCarrier := linktest.Carriers() // for owners that reconnect
//
// The connections are real unix sockets.
package linktest

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/ratoon-project/ratoon/protocol/link"
)

// Pair returns the two ends of one link, closed at the end of the test.
func Pair(tb testing.TB) (host, guest *link.Link) {
	tb.Helper()
	h, g := Carriers()
	return Connect(tb, h, g, link.Options{})
}

// Connect links the two ends of a pair of carriers.
func Connect(tb testing.TB, hostEnd, guestEnd link.Carrier, opt link.Options) (host, guest *link.Link) {
	tb.Helper()
	accepted := make(chan error, 1)
	go func() {
		var err error
		guest, err = link.Accept(tb.Context(), guestEnd, opt)
		accepted <- err
	}()
	host, err := link.Connect(tb.Context(), hostEnd, opt)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	tb.Cleanup(func() { host.Close() })
	if err := <-accepted; err != nil {
		tb.Fatalf("accept: %v", err)
	}
	tb.Cleanup(func() { guest.Close() })
	return host, guest
}

// carrier is one end of a rendezvous: what the host opens, the guest gets.
type carrier struct {
	host     bool
	channels map[link.Channel]chan net.Conn
}

// Carriers returns the two ends of a carrier that can be connected any number
// of times. The guest must be waiting for a host's Open to return.
func Carriers() (host, guest link.Carrier) {
	channels := map[link.Channel]chan net.Conn{link.Control: make(chan net.Conn), link.Bulk: make(chan net.Conn)}
	return &carrier{true, channels}, &carrier{false, channels}
}

func (c *carrier) Open(ctx context.Context, ch link.Channel) (net.Conn, error) {
	if !c.host {
		select {
		case conn := <-c.channels[ch]:
			return conn, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	mine, theirs, err := SocketPair()
	if err != nil {
		return nil, err
	}
	select {
	case c.channels[ch] <- theirs:
		return mine, nil
	case <-ctx.Done():
		mine.Close()
		theirs.Close()
		return nil, context.Cause(ctx)
	}
}

// SocketPair returns two connected unix sockets.
func SocketPair() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, ferr := net.FileConn(f)
		f.Close()
		if ferr != nil {
			err = fmt.Errorf("make socket pair: %w", ferr)
		}
		conns[i] = c
	}
	return conns[0], conns[1], err
}
