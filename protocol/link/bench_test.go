package link_test

import (
	"testing"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
)

func BenchmarkRoundTrip(b *testing.B) {
	host, guest := linktest.Pair(b)
	ctx := b.Context()
	go func() {
		for {
			m, err := guest.Receive(ctx)
			if err != nil {
				return
			}
			guest.Send(ctx, &protocol.Pong{N: m.(*protocol.Ping).N})
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		if err := host.Send(ctx, &protocol.Ping{N: 1}); err != nil {
			b.Fatal(err)
		}
		if _, err := host.Receive(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBulk(b *testing.B) {
	host, guest := linktest.Pair(b)
	st, err := host.OpenStream(b.Context(), protocol.Open{Op: protocol.OpFiles})
	if err != nil {
		b.Fatal(err)
	}
	_, peer, err := guest.AcceptStream(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	frame := &protocol.FileFrame{Data: make([]byte, 64<<10)}
	go func() {
		for st.Send(frame) == nil {
		}
	}()
	b.SetBytes(int64(len(frame.Data)))
	for b.Loop() {
		var f protocol.FileFrame
		if err := peer.Receive(&f); err != nil {
			b.Fatal(err)
		}
	}
}
