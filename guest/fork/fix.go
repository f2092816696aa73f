package fork

import (
	"errors"
	"fmt"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Fixer gives a machine that comes back from a capture its time, entropy and
// identity. Each field does one part; New... functions make the real ones.
type Fixer struct {
	SetClock func(now time.Time) error
	// Reseed puts entropy into the kernel's generator and makes every later
	// read depend on it.
	Reseed func(entropy []byte) error
	// SetBootID gives the machine a fresh boot id.
	SetBootID func() error
	// SetNames sets hostname and machine-id.
	SetNames func(id protocol.Identity) error
	// Now is the wall clock.
	Now func() time.Time
	// MonotonicClock is the monotonic clock, in nanoseconds.
	MonotonicClock func() int64
}

// Host makes a Fixer of this machine. Files holds the identity files, see
// Files.Install.
func Host(files Files) *Fixer {
	return &Fixer{
		SetClock:  SetClock,
		Reseed:    Reseed,
		SetBootID: files.SetBootID,
		SetNames:  files.SetNames,
		Now:       time.Now,

		MonotonicClock: MonotonicClock,
	}
}

// minEntropy is what a thaw must bring: 256 bits, the size of the kernel's key.
const minEntropy = 32

// Fix applies t: clock, entropy, identity, in that order. newTimeline says that
// this is a copy and not the machine that was captured: only a copy gets another
// boot id, a machine that runs on has not booted again.
func (f *Fixer) Fix(t *protocol.Thaw, newTimeline bool) error {
	if len(t.Entropy) < minEntropy {
		return fmt.Errorf("reseed the kernel: %d bytes of entropy, want at least %d", len(t.Entropy), minEntropy)
	}
	if err := f.SetClock(f.wall(t.Time, t.Clock)); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	if err := f.Reseed(t.Entropy); err != nil {
		return fmt.Errorf("reseed the kernel: %w", err)
	}
	if newTimeline {
		if err := f.SetBootID(); err != nil {
			return fmt.Errorf("set the boot id: %w", err)
		}
	}
	if newTimeline && t.Identity.NewLine {
		if err := f.SetNames(t.Identity); err != nil {
			return fmt.Errorf("set hostname and machine-id: %w", err)
		}
	}
	return nil
}

// minStep is the difference below which a running machine's clock is left alone.
const minStep = 50 * time.Millisecond

// Monotonic is the machine's monotonic clock in nanoseconds.
func (f *Fixer) Monotonic() int64 { return f.MonotonicClock() }

// wall is the time now, when it was wall at the given monotonic clock.
func (f *Fixer) wall(wall, clock int64) time.Time { return time.Unix(0, wall+f.Monotonic()-clock) }

// Clock corrects the clock of a machine that was not stopped, as on attach: it
// was wall, in Unix nanoseconds, at the given monotonic clock.
func (f *Fixer) Clock(wall, clock int64) error {
	want := f.wall(wall, clock)
	if d := want.Sub(f.Now()); d.Abs() < minStep {
		return nil
	}
	if err := f.SetClock(want); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

var errNoFiles = errors.New("no identity files are installed")
