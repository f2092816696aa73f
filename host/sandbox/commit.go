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

// errDown ends operations when their process is going away: whatever they
// had not committed is undone by recovery.
var errDown = errors.New("the host is shutting down")

// commit runs one transaction and returns nil once it is on disk. An error
// means that it is not. When the write itself fails nobody can tell, so
// nothing happens until a later transaction has read whether it is there
// (section 9 of the protocol). Commits of one sandbox are one after another.
func (s *Sandbox) commit(label string, f func(Tx) error) error {
	s.commits.Lock()
	defer s.commits.Unlock()
	if s.ctx.Err() != nil {
		return errDown
	}
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
			return fmt.Errorf("write journal (%s): %w", label, diskError(err))
		}
		if sleep(s.ctx, wait) != nil {
			return errDown
		}
	}
}

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
