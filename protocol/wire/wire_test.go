package wire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// countingWriter counts calls, to see that a frame is one Write.
type countingWriter struct {
	bytes.Buffer
	writes int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes++
	return w.Buffer.Write(p)
}

func TestFrameRoundTrip(t *testing.T) {
	t.Parallel()
	index := 3
	want := &protocol.BranchResult{ID: "br-1", Checkpoint: "cp-1", Index: &index, N: 4, Payload: []byte{0, 1, 2}}
	var w countingWriter
	if err := wire.WriteFrame(&w, want, protocol.MaxControlFrame); err != nil {
		t.Fatal(err)
	}
	if w.writes != 1 {
		t.Errorf("got %d writes, want 1", w.writes)
	}
	got := new(protocol.BranchResult)
	if err := wire.ReadFrame(&w, got, protocol.MaxControlFrame); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := wire.ReadFrame(&w, got, protocol.MaxControlFrame); err != io.EOF {
		t.Errorf("after the last frame: got %v, want io.EOF itself", err)
	}
}

func TestFrameLimits(t *testing.T) {
	t.Parallel()
	var w countingWriter
	err := wire.WriteFrame(&w, strings.Repeat("x", 100), 50)
	if protocol.CodeOf(err) != protocol.CodeTooLarge || w.writes != 0 {
		t.Errorf("write over the limit: got %v after %d writes, want %s after none", err, w.writes, protocol.CodeTooLarge)
	}
	var v any
	err = wire.ReadFrame(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff}), &v, 50)
	if protocol.CodeOf(err) != protocol.CodeProtocol {
		t.Errorf("read over the limit: got %v, want %s", err, protocol.CodeProtocol)
	}
	for _, cut := range []int{1, 3, 4, 5} {
		err := wire.ReadFrame(bytes.NewReader([]byte{0, 0, 0, 3, 0x92, 1, 2}[:cut]), &v, 50)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: got %v, want unexpected EOF", cut, err)
		}
	}
}

func TestMessageRoundTrip(t *testing.T) {
	t.Parallel()
	for name, make := range protocol.Types() {
		want := make()
		b, err := wire.EncodeMessage(want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := wire.DecodeMessage(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
