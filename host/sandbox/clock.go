package sandbox

import (
	"context"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// reading says what a guest's monotonic clock showed at some moment between
// two of the host's.
type reading struct {
	guest         int64
	after, before time.Time
}

func (r reading) none() bool          { return r.before.IsZero() }
func (r reading) span() time.Duration { return r.before.Sub(r.after) }

// wall is the middle of the span in Unix nanoseconds.
func (r reading) wall() int64 { return r.after.Add(r.span() / 2).UnixNano() }

const (
	// clockSpan is how long the span may be: half of it is the error.
	clockSpan = 40 * time.Millisecond
	// clockAge is for how long a reading is used: a machine may have been
	// paused since.
	clockAge = time.Second
	// clockTries ends the asking where the host is too busy for a good answer.
	clockTries = 4
)

// readClock returns a recent reading of the guest's clock, the best of a few if
// they take long.
func (ss *session) readClock(ctx context.Context) (reading, error) {
	best := ss.clock
	if time.Since(best.before) > clockAge {
		best = reading{}
	}
	for try := 0; try < clockTries && (best.none() || best.span() > clockSpan); try++ {
		r, err := ss.ping(ctx)
		if err != nil {
			return reading{}, err
		}
		if best.none() || r.span() < best.span() {
			best = r
		}
	}
	ss.clock = best
	return best, nil
}

func (ss *session) ping(ctx context.Context) (reading, error) {
	ss.pings++
	r := reading{after: time.Now()}
	if err := ss.link.Send(ctx, &protocol.Ping{N: ss.pings}); err != nil {
		return r, err
	}
	m, err := ss.await(ctx, func(m protocol.Message) bool {
		p, ok := m.(*protocol.Pong)
		return ok && p.N == ss.pings
	})
	if err != nil {
		return r, err
	}
	r.guest, r.before = m.(*protocol.Pong).Clock, time.Now()
	return r, nil
}
