package sandbox

import (
	"context"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// reading is what is known of a guest's monotonic clock: it showed guest at a
// moment, and 0 between two of the host's, in Unix nanoseconds.
type reading struct {
	guest     int64
	low, high int64
	at        time.Time // of the newest look
}

// read is a look that began and ended at these moments of the host's.
func read(guest int64, began, ended time.Time) reading {
	return reading{guest, began.UnixNano() - guest, ended.UnixNano() - guest, ended}
}

// and is what both say; the clocks run alike. After a step of the host's the
// newer one counts.
func (r reading) and(newer reading) reading {
	if newer.at.Sub(r.at) > clockAge {
		return newer
	}
	both := newer
	both.low, both.high = max(r.low, newer.low), min(r.high, newer.high)
	if both.low > both.high {
		return newer
	}
	return both
}

func (r reading) span() time.Duration { return time.Duration(r.high - r.low) }

// wall is the host's time in Unix nanoseconds when the clock showed guest.
func (r reading) wall() int64 { return r.guest + r.low + (r.high-r.low)/2 }

const (
	// clockSpan is how much may be unknown: half of it is the error.
	clockSpan = 40 * time.Millisecond
	// clockAge is for how long a reading is used: a machine may have been
	// paused since.
	clockAge = time.Second
	// clockTries ends the asking where the host is too busy for a good answer.
	clockTries = 8
)

// readClock returns a recent reading of the guest's clock; where messages take
// long, of several looks.
func (ss *session) readClock(ctx context.Context) (reading, error) {
	for try := 0; try < clockTries && (time.Since(ss.clock.at) > clockAge || ss.clock.span() > clockSpan); try++ {
		r, err := ss.ping(ctx)
		if err != nil {
			return reading{}, err
		}
		ss.clock = ss.clock.and(r)
	}
	return ss.clock, nil
}

func (ss *session) ping(ctx context.Context) (reading, error) {
	ss.pings++
	began := time.Now()
	if err := ss.link.Send(ctx, &protocol.Ping{N: ss.pings}); err != nil {
		return reading{}, err
	}
	m, err := ss.await(ctx, func(m protocol.Message) bool {
		p, ok := m.(*protocol.Pong)
		return ok && p.N == ss.pings
	})
	if err != nil {
		return reading{}, err
	}
	return read(m.(*protocol.Pong).Clock, began, time.Now()), nil
}
