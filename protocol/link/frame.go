package link

import (
	"errors"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// readFrame reads the body of one frame from s. Once its first byte has come,
// the rest must keep coming; torn tells that it did not.
func (l *Link) readFrame(s *yamux.Stream, deadline time.Time, max int) (body []byte, torn bool, err error) {
	r := frameReader{s: s, deadline: deadline, stall: l.opt.stall()}
	body, err = wire.ReadBody(&r, max)
	if r.changed {
		s.SetReadDeadline(deadline)
	}
	if r.stalled {
		err = protocol.Errorf(protocol.CodeTimeout, "the other end stalled in the middle of a frame")
		l.fail(err)
	}
	return body, err != nil && r.began, err
}

// frameReader reads one frame from a stream.
type frameReader struct {
	s        *yamux.Stream
	deadline time.Time // of the owner
	stall    time.Duration
	began    bool
	changed  bool
	stalled  bool
}

func (r *frameReader) Read(p []byte) (int, error) {
	if r.began {
		if limit := time.Now().Add(r.stall); r.deadline.IsZero() || limit.Before(r.deadline) {
			r.s.SetReadDeadline(limit)
			r.changed = true
		}
	}
	n, err := r.s.Read(p)
	r.began = r.began || n > 0
	if errors.Is(err, yamux.ErrTimeout) && r.changed && (r.deadline.IsZero() || time.Now().Before(r.deadline)) {
		r.stalled = true
	}
	return n, err
}
