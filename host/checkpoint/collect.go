package checkpoint

import (
	"context"
	"errors"

	"github.com/ratoon-project/ratoon/protocol"
)

// CollectOptions say what Collect leaves. Nil functions: nothing.
type CollectOptions struct {
	// Needed is asked for checkpoints of class internal.
	Needed func(Manifest) bool
	// KeepBase is asked for bases that no checkpoint names and nobody holds.
	KeepBase func(BaseManifest) bool
}

// Collected is what Collect removed.
type Collected struct {
	Checkpoints []protocol.CheckpointID `json:"checkpoints"`
	Bases       []protocol.BaseID       `json:"bases"`
	// Objects is how many files of frames went, Packed how many were rewritten
	// since less than half of them was needed.
	Objects int `json:"objects"`
	Packed  int `json:"packed"`
	// Freed is bytes of disk, with what others removed at the same time.
	Freed int64 `json:"freed_bytes"`
}

// NewCollected is the report of nothing, in which no list is nil.
func NewCollected() Collected {
	return Collected{Checkpoints: []protocol.CheckpointID{}, Bases: []protocol.BaseID{}}
}

// Collect removes everything that nobody needs: what was cut short, internal
// checkpoints, bases, and frames. Each thing is renamed away first and unlinked then, so
// a process that is killed at any step leaves it whole or to the next Collect.
// What it has removed is right also with an error.
func (s *Store) Collect(ctx context.Context, o CollectOptions) (c Collected, err error) {
	c = NewCollected()
	before := s.Freed()
	defer func() { c.Freed = s.Freed() - before }()
	keep := func(id protocol.CheckpointID) bool {
		m, err := s.summary(id)
		return err != nil || o.Needed != nil && o.Needed(m)
	}
	checkpoints, failed := s.Sweep(keep)
	c.Checkpoints = append(c.Checkpoints, checkpoints...)
	if protocol.CodeOf(failed) == protocol.CodeNotSupported {
		return c, failed
	}
	if err := context.Cause(ctx); err != nil {
		return c, typed(protocol.CodeCancelled, "collect garbage", errors.Join(failed, err))
	}
	bases, err := s.SweepBases(o.KeepBase)
	c.Bases = append(c.Bases, bases...)
	failed = errors.Join(failed, err)
	n, err := s.SweepObjects()
	c.Objects, failed = n, errors.Join(failed, err)
	c.Packed, err = s.packAgain(ctx)
	c.Objects += c.Packed // repack sweeps what it has replaced
	return c, errors.Join(failed, err)
}
