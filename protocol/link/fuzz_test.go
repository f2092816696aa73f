package link_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
)

// Whatever a guest sends after the handshake, inside records or not, the host
// goes on, and closing its end of the link works.
func FuzzGuest(f *testing.F) {
	frame := mux(muxData, flagSYN, 2, 16, "\x00\x00\x00\x0c\x81\xa2op\xa7message")
	f.Add(true, mux(muxWindow, flagACK, 1, 0, ""), frame)
	f.Add(true, mux(muxWindow, 8, 1, 0, ""), mux(muxWindow, flagSYN|8, 2, 0, ""))
	f.Add(true, mux(muxWindow, flagSYN|4, 2, 0, ""), mux(muxWindow, 15, 2, 1<<31, ""))
	f.Add(true, mux(3, 0, 0, 1, ""), mux(3, 0, 0, 7, ""))
	f.Add(false, link.Record('E', nil), link.Record('E', nil))
	f.Add(false, link.SYN(1, 2), link.ACK(1, 2, 3))
	f.Add(false, []byte("D\x00\x00"), []byte("D\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, framed bool, control, bulk []byte) {
		host, rawControl, rawBulk := hostileGuest(t)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		write := func(c net.Conn, b []byte) {
			if framed && len(b) > 0 {
				b = data(b[:min(len(b), link.MaxRecord)])
			}
			c.Write(b)
			c.Close()
		}
		write(rawControl, control)
		write(rawBulk, bulk)
		for {
			if _, err := host.Receive(ctx); err != nil {
				break
			}
		}
		// Only an END on the control connection lets a link half live.
		if err := host.Close(); err != nil {
			t.Error(err)
		}
		if ctx.Err() != nil {
			t.Error("a connection that was closed did not end the link")
		}
	})
}

// Whatever comes before a handshake, the search for it ends with the input.
func FuzzGreeting(f *testing.F) {
	f.Add(link.SYN(1, 2))
	f.Add(link.ACK(1, 2, 3))
	f.Add(append(link.SYN(1, 2)[:20], link.SYN(1, 2)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, g := linktest.Carriers()
		ctx, cancel := context.WithCancelCause(t.Context())
		over := errors.New("over")
		go func() {
			defer cancel(over)
			raw, err := g.Open(ctx, link.Control)
			if err != nil {
				return
			}
			defer raw.Close()
			raw.Write(b)
		}()
		_, err := link.Connect(ctx, h, link.Options{})
		if code := protocol.CodeOf(err); code != protocol.CodeUnavailable && code != protocol.CodeProtocol {
			t.Errorf("got %v", err)
		}
	})
}
