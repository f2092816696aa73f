package spool_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/spool"
	"github.com/ratoon-project/ratoon/internal/fault"
)

func open(t *testing.T, dir string, o spool.Options) *spool.Spool {
	t.Helper()
	s, err := spool.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestModel compares a spool with all that was ever written, over any number
// of reopenings.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		const limit = 400
		o := spool.Options{Limit: limit}
		s, err := spool.Open(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		var all []byte
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "b")
				if n, err := s.Write(b); n != len(b) || err != nil {
					t.Fatalf("write of %d: %d, %v", len(b), n, err)
				}
				all = append(all, b...)
			},
			"reopen": func(t *rapid.T) {
				s.Seal()
				if s, err = spool.Open(dir, o); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if got := s.End(); got != int64(len(all)) {
					t.Fatalf("end %d, want %d", got, len(all))
				}
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				got, at := []byte(nil), int64(-1)
				for next := int64(0); ; {
					p, err := s.Read(ctx, next)
					if errors.Is(err, context.Canceled) {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					if at < 0 {
						at = p.Offset
					} else if p.Offset != next {
						t.Fatalf("a gap at %d", next)
					}
					got, next = append(got, p.Data...), p.Offset+int64(len(p.Data))
				}
				if at < 0 {
					at = int64(len(all))
				}
				if !bytes.Equal(got, all[at:]) {
					t.Fatalf("read %q from %d, want %q", got, at, all[at:])
				}
				if len(got) < min(len(all), limit/2) || len(got) > limit+limit/4 {
					t.Fatalf("keeps %d bytes of %d with a limit of %d", len(got), len(all), limit)
				}
			},
		})
	})
}

func TestFullDisk(t *testing.T) {
	s := open(t, t.TempDir(), spool.Options{})
	s.Write([]byte("before "))
	clear := fault.Set("spool.write", 1, fault.Error(unix.ENOSPC))
	if n, err := s.Write([]byte("lost ")); n != 5 || err != nil {
		t.Fatalf("a full disk stopped the writer: %d, %v", n, err)
	}
	clear()
	s.Write([]byte("after"))
	s.Seal()
	for _, want := range []spool.Piece{{Offset: 0, Data: []byte("before ")}, {Offset: 12, Data: []byte("after")}} {
		p, err := s.Read(t.Context(), want.Offset)
		if err != nil || p.Offset != want.Offset || !bytes.Equal(p.Data, want.Data) {
			t.Fatalf("got %d %q, %v; want %d %q", p.Offset, p.Data, err, want.Offset, want.Data)
		}
	}
	if p, err := s.Read(t.Context(), 7); err != nil || p.Offset != 12 {
		t.Fatalf("a reader at the gap got offset %d, %v; want 12", p.Offset, err)
	}
	if _, err := s.Read(t.Context(), 17); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v, want EOF", err)
	}
}

func TestReadWaits(t *testing.T) {
	s := open(t, t.TempDir(), spool.Options{})
	got := make(chan spool.Piece)
	go func() {
		p, err := s.Read(t.Context(), 0)
		if err != nil {
			t.Error(err)
		}
		got <- p
	}()
	select {
	case p := <-got:
		t.Fatalf("read %q of an empty spool", p.Data)
	case <-time.After(10 * time.Millisecond):
	}
	s.Write([]byte("x"))
	if p := <-got; string(p.Data) != "x" {
		t.Fatalf("got %q, want x", p.Data)
	}
	ended := make(chan error)
	go func() {
		_, err := s.Read(t.Context(), 1)
		ended <- err
	}()
	s.Seal()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Fatalf("after the seal: %v, want EOF", err)
	}
}
