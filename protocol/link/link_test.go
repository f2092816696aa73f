package link_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

func TestMessagesBothWays(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	ctx := t.Context()
	for i := range 100 {
		want := &protocol.Ping{N: uint64(i)}
		if err := host.Send(ctx, want); err != nil {
			t.Fatal(err)
		}
		got, err := guest.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(protocol.Message(want), got); diff != "" {
			t.Fatal(diff)
		}
		if err := guest.Send(ctx, &protocol.Pong{N: uint64(i)}); err != nil {
			t.Fatal(err)
		}
		if got, err = host.Receive(ctx); err != nil || got.(*protocol.Pong).N != uint64(i) {
			t.Fatalf("got %v, %v, want pong %d", got, err, i)
		}
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	ctx := t.Context()
	st, err := host.OpenStream(ctx, protocol.Open{Op: protocol.OpFiles, File: &protocol.FileRequest{Op: "put", Path: "/x"}})
	if err != nil {
		t.Fatal(err)
	}
	open, peer, err := guest.AcceptStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if open.File == nil || open.File.Path != "/x" {
		t.Errorf("got open %+v", open)
	}
	if err := st.Send(&protocol.FileFrame{Data: []byte("abc"), End: true}); err != nil {
		t.Fatal(err)
	}
	if err := st.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var f protocol.FileFrame
	if err := peer.Receive(&f); err != nil || string(f.Data) != "abc" || !f.End {
		t.Fatalf("got %+v, %v", f, err)
	}
	if err := peer.Receive(&f); err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
	if err := peer.Send(&protocol.FileFrame{Done: true}); err != nil {
		t.Fatal(err)
	}
	if err := st.Receive(&f); err != nil || !f.Done {
		t.Errorf("got %+v, %v", f, err)
	}
	if err := errors.Join(st.Close(), st.Close(), peer.Close()); err != nil {
		t.Error(err)
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	ctx := t.Context()
	if err := guest.Send(ctx, &protocol.Quiesced{Freeze: 7}); err != nil {
		t.Fatal(err)
	}
	if err := guest.End(); err != nil {
		t.Fatal(err)
	}
	if err := host.AwaitEnd(ctx); err != nil {
		t.Fatal(err)
	}
	m, err := host.Receive(ctx)
	if err != nil || m.(*protocol.Quiesced).Freeze != 7 {
		t.Fatalf("got %v, %v, want the message before the end", m, err)
	}
	if _, err := host.Receive(ctx); err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
	if err := guest.Send(ctx, &protocol.Pong{}); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("send after the end: got %v, want %s", err, protocol.CodeUnavailable)
	}
	<-host.Done()
	if !errors.Is(host.Err(), io.EOF) || !errors.Is(guest.Err(), io.EOF) {
		t.Errorf("got %v and %v, want io.EOF at both ends", host.Err(), guest.Err())
	}
}

func TestLongMessages(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	ctx := t.Context()
	value := make([]byte, 3<<20)
	for i := range value {
		value[i] = byte(i * 7)
	}
	go func() {
		for i := range 4 {
			host.Send(ctx, &protocol.Outcome{Key: protocol.Key{Sequence: uint64(2 * i)}, Value: value})
			host.Send(ctx, &protocol.Outcome{Key: protocol.Key{Sequence: uint64(2*i + 1)}})
		}
	}()
	for i := range 8 {
		m, err := guest.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		o := m.(*protocol.Outcome)
		if o.Key.Sequence != uint64(i) {
			t.Fatalf("got message %d, want %d", o.Key.Sequence, i)
		}
		if i%2 == 0 && !bytes.Equal(o.Value, value) {
			t.Errorf("message %d was changed", i)
		}
	}
}

func TestLongMessageLimit(t *testing.T) {
	t.Parallel()
	host, guest := linktest.Pair(t)
	ctx := t.Context()
	probe, err := wire.EncodeMessage(&protocol.Outcome{Value: make([]byte, 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	most := protocol.MaxMessage - (len(probe) - 1<<20) // of the value
	over := &protocol.Outcome{Value: make([]byte, most+1)}
	if err := guest.Send(ctx, over); protocol.CodeOf(err) != protocol.CodeTooLarge {
		t.Errorf("one byte over the limit: got %v, want %s", err, protocol.CodeTooLarge)
	}
	if err := guest.Send(ctx, &protocol.Outcome{Value: over.Value[:most]}); err != nil {
		t.Fatalf("at the limit: %v", err)
	}
	if m, err := host.Receive(ctx); err != nil || len(m.(*protocol.Outcome).Value) != most {
		t.Fatalf("at the limit: got %v", err)
	}
	// A guest that sends more all the same.
	st, err := guest.OpenStream(ctx, protocol.Open{Op: protocol.OpMessage, Message: 2})
	if err != nil {
		t.Fatal(err)
	}
	piece := &protocol.Piece{Data: over.Value[:2<<20]}
	for err == nil {
		err = st.Send(piece)
	}
	<-host.Done()
	if protocol.CodeOf(host.Err()) != protocol.CodeProtocol {
		t.Errorf("got %v, want %s", host.Err(), protocol.CodeProtocol)
	}
}
