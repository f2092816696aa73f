package daemon

import (
	"context"
	"io"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// stdin hands what clients type to the program that reads it. Unlike that of a
// pipe its writer can give up without closing it for the next one.
type stdin struct {
	pieces chan []byte
	rest   []byte // of the reader
	ended  chan struct{}
	once   sync.Once
}

func newStdin() *stdin { return &stdin{pieces: make(chan []byte), ended: make(chan struct{})} }

// Read implements io.Reader.
func (in *stdin) Read(b []byte) (int, error) {
	if len(in.rest) == 0 {
		select {
		case in.rest = <-in.pieces:
		case <-in.ended:
			return 0, io.EOF
		}
	}
	n := copy(b, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

// write waits until data has been read. It keeps data.
func (in *stdin) write(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	select {
	case <-in.ended:
		return protocol.Errorf(protocol.CodeCancelled, "standard input is closed")
	default:
	}
	select {
	case in.pieces <- data:
		return nil
	case <-in.ended:
		return protocol.Errorf(protocol.CodeCancelled, "standard input is closed")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close puts it at its end. Idempotent.
func (in *stdin) close() { in.once.Do(func() { close(in.ended) }) }
