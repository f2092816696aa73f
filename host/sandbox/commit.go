package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// commitTable holds the marks by which a later transaction learns whether an
// earlier one reached the disk.
const commitTable = "commit"

// rejected marks an error of a transaction's own checks: nothing was written.
type rejected struct{ error }

func (r rejected) Unwrap() error { return r.error }

// unwritten is a write that failed and is known not to be on disk.
type unwritten struct{ error }

func (u unwritten) Unwrap() error { return u.error }

// errDown ends operations when their process is going away: whatever they
// had not committed is undone by recovery.
var errDown = errors.New("the host is shutting down")

// commit runs one transaction and returns nil once it is on disk. An error
// means that it is not. When the write itself fails nobody can tell, so
// nothing happens until a later transaction has read whether it is there
// (section 9 of the protocol). Commits of one sandbox are one after another;
// then runs before the next, so that what this process knows never differs
// from what a later transaction reads.
func (s *Sandbox) commit(label string, f func(Tx) error, then ...func()) error {
	if err := s.commits.enter(s.ctx); err != nil {
		return errDown
	}
	defer s.commits.leave()
	err := s.write(label, f)
	if err == nil {
		for _, g := range then {
			g()
		}
	}
	return err
}

func (s *Sandbox) write(label string, f func(Tx) error) error {
	mark := []byte(rand.Text())
	err := s.journal.Update(label, func(tx Tx) error {
		if err := f(tx); err != nil {
			return rejected{err}
		}
		return tx.Put(commitTable, "last", mark)
	})
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[rejected](err); ok {
		return r.error
	}
	s.emit(Event{Kind: EventJournalUnclear, Error: protocol.AsError(err)})
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		there := false
		confirm := s.journal.Update("journal.confirm", func(tx Tx) error {
			there = string(tx.Get(commitTable, "last")) == string(mark)
			return tx.Put(commitTable, "confirmed", mark)
		})
		if confirm == nil && there {
			return nil
		}
		if confirm == nil {
			return unwritten{fmt.Errorf("write journal (%s): %w", label, diskError(err))}
		}
		if sleep(s.ctx, wait) != nil {
			return errDown
		}
	}
}

// record is commit for what has happened already and cannot be undone, such
// as the death of a machine: it is written again until it is on disk.
func (s *Sandbox) record(label string, f func(Tx) error, then ...func()) error {
	return s.insist(func() error { return s.commit(label, f, then...) })
}

// insist does again what only a failed write has kept from happening: nobody
// would ask for it a second time.
func (s *Sandbox) insist(f func() error) error {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := f()
		if _, again := errors.AsType[unwritten](err); !again {
			return err
		}
		if sleep(s.ctx, wait) != nil {
			return errDown
		}
	}
}

// gate is a lock that is held across I/O. Who waits for it goes away with ctx.
type gate chan struct{}

func (g gate) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g gate) leave() { <-g }

// view reads the journal.
func (s *Sandbox) view(f func(Tx) error) error { return s.journal.View(f) }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
