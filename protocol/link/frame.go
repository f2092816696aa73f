package link

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// reader reads frames from a stream. Two limits of time meet in the stream's
// one deadline: the owner's, and that on the rest of a frame which has begun.
type reader struct {
	mux *yamux.Stream

	mu    sync.Mutex // guards owner, and the stream's deadline
	owner time.Time
}

// setDeadline sets the owner's deadline; the zero time lifts it.
func (r *reader) setDeadline(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owner = t
	r.mux.SetReadDeadline(t)
}

// arm bounds the next read by limit too; the zero time lifts it.
func (r *reader) arm(limit time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if limit.IsZero() || !r.owner.IsZero() && r.owner.Before(limit) {
		limit = r.owner
	}
	r.mux.SetReadDeadline(limit)
}

// frame is one frame being read.
type frame struct {
	from  *reader
	stall time.Duration
	began bool
	limit time.Time // on the rest; zero until the frame has begun
}

func (f *frame) Read(p []byte) (int, error) {
	if f.began {
		f.limit = time.Now().Add(f.stall)
		f.from.arm(f.limit)
	}
	n, err := f.from.mux.Read(p)
	f.began = f.began || n > 0
	return n, err
}

// readFrame reads the body of one frame. Once its first byte has come, the
// rest must keep coming, else the link fails. torn tells that an error left a
// part of a frame behind.
func (l *Link) readFrame(r *reader, max int) (body []byte, torn bool, err error) {
	f := frame{from: r, stall: l.opt.stall()}
	body, err = wire.ReadBody(&f, max)
	if !f.limit.IsZero() {
		r.arm(time.Time{})
	}
	if errors.Is(err, yamux.ErrTimeout) && !f.limit.IsZero() && !time.Now().Before(f.limit) {
		err = protocol.Errorf(protocol.CodeTimeout, "the other end stalled in the middle of a frame")
		l.fail(err)
	}
	return body, err != nil && f.began, err
}
