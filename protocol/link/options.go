package link

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Channel names one of the two connections of a link.
type Channel string

// The channels.
const (
	Control Channel = "control"
	Bulk    Channel = "bulk"
)

// Carrier makes raw connections. At the host Open connects; at the guest it
// waits for one. A failed Open leaves nothing behind. Open is called for both
// channels at the same time, and again for a channel whose connection failed
// before the link was up.
type Carrier interface {
	Open(ctx context.Context, ch Channel) (net.Conn, error)
}

// Options of a link; the zero value is ready.
type Options struct {
	// Stall is how long the peer may take or give nothing in the middle of a
	// frame; 30 s if zero.
	Stall time.Duration
	// Log gets debug messages on failed attempts to connect; none if nil.
	Log *slog.Logger

	host bool // which end this is
}

func (o Options) stall() time.Duration {
	if o.Stall > 0 {
		return o.Stall
	}
	return 30 * time.Second
}

func (o Options) log() *slog.Logger {
	if o.Log != nil {
		return o.Log
	}
	return slog.New(slog.DiscardHandler)
}
