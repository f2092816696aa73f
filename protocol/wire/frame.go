package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ratoon-project/ratoon/protocol"
)

// firstRead is how much of a body is allocated before any of it has come.
const firstRead = 4 << 10

// WriteFrame writes v as one frame with one Write. A body longer than max
// bytes is refused with protocol.CodeTooLarge, and nothing is written.
func WriteFrame(w io.Writer, v any, max int) error {
	var buf bytes.Buffer
	buf.Write(make([]byte, 4))
	if err := encode(&buf, v); err != nil {
		return err
	}
	return writeFrame(w, buf.Bytes(), max)
}

// WriteBody is WriteFrame for a body that is encoded already.
func WriteBody(w io.Writer, body []byte, max int) error {
	frame := make([]byte, 4, 4+len(body))
	return writeFrame(w, append(frame, body...), max)
}

func writeFrame(w io.Writer, frame []byte, max int) error {
	n := len(frame) - 4
	if n > max {
		return protocol.Errorf(protocol.CodeTooLarge, "a frame of %d bytes is over the limit of %d", n, max)
	}
	binary.BigEndian.PutUint32(frame, uint32(n))
	if _, err := w.Write(frame); err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// ReadFrame reads one frame into the pointer v. A body longer than max bytes
// is refused before anything is allocated for it. io.EOF means that the input
// ended between two frames.
func ReadFrame(r io.Reader, v any, max int) error {
	body, err := ReadBody(r, max)
	if err != nil {
		return err
	}
	return Unmarshal(body, v)
}

// ReadBody is ReadFrame without decoding: the body is not checked yet. Memory
// grows with what has arrived, not with what was announced.
func ReadBody(r io.Reader, max int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("read frame: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if uint64(n) > uint64(max) {
		return nil, protocol.Errorf(protocol.CodeProtocol, "a frame of %d bytes is over the limit of %d", n, max)
	}
	want := int(n)
	body := make([]byte, 0, min(want, firstRead))
	for len(body) < want {
		if len(body) == cap(body) {
			grown := make([]byte, len(body), min(want, 2*cap(body)))
			copy(grown, body)
			body = grown
		}
		m, err := io.ReadFull(r, body[len(body):cap(body)])
		body = body[:len(body)+m]
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("read frame: %w", err)
		}
	}
	return body, nil
}
