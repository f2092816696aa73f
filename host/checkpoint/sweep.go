package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/ratoon-project/ratoon/protocol"
)

// Sweep removes temporary directories that nobody in this process is writing,
// left-over manifests, and checkpoints of class internal for which keep
// answers false (nil: none are removed). It returns the ids it removed.
func (s *Store) Sweep(keep func(protocol.CheckpointID) bool) ([]protocol.CheckpointID, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	failed := s.sweepTemporary()
	names, err := entries(s.checkpoints())
	if err != nil {
		return nil, typed(protocol.CodeInternal, "sweep checkpoints", err)
	}
	var unwanted []protocol.CheckpointID
	for _, name := range names {
		id, err := protocol.ParseCheckpointID(name)
		if err != nil {
			continue
		}
		s.sweepManifest(string(id), s.checkpointDir(id))
		m, err := s.summary(id)
		if err == nil && m.Files.Frames != nil { // a compaction that was cut short
			if err := s.dropPages(id); err != nil {
				failed = errors.Join(failed, typed(protocol.CodeInternal, "remove the pages of "+checkpointName(id), err))
			}
		}
		if keep != nil && err == nil && m.Class == ClassInternal && !keep(id) {
			unwanted = append(unwanted, id)
		}
	}
	removed, err := s.removeInternal(unwanted)
	return removed, errors.Join(failed, err)
}

func (s *Store) sweepTemporary() error {
	names, err := entries(s.temporary())
	if err != nil {
		return typed(protocol.CodeInternal, "sweep temporary directories", err)
	}
	var failed error
	for _, name := range names {
		dir := filepath.Join(s.temporary(), name)
		s.mu.Lock()
		_, used := s.pending[dir]
		s.mu.Unlock()
		if used {
			continue
		}
		if err := s.empty(dir); err != nil {
			failed = errors.Join(failed, typed(protocol.CodeInternal, "sweep temporary directories", err))
		}
	}
	return failed
}

// sweepManifest removes the manifest of a rewrite that was cut short.
func (s *Store) sweepManifest(id, dir string) {
	defer s.ids.lock(id)()
	if err := removeIfThere(filepath.Join(dir, nameManifestNew)); err != nil {
		s.log.Warn("remove left-over manifest", "dir", dir, "error", err)
	}
}

// SweepBases removes every base that no checkpoint names, nobody holds and
// keep does not want (nil: keep none), and returns their ids.
func (s *Store) SweepBases(keep func(BaseManifest) bool) ([]protocol.BaseID, error) {
	if err := s.writable(); err != nil {
		return nil, err
	}
	list, bad, err := s.Bases()
	if err != nil {
		return nil, err
	}
	g, err := s.graph() // RemoveBase looks again, at what is left
	if err != nil {
		return nil, err
	}
	ids := make([]protocol.BaseID, 0, len(list)+len(bad))
	for _, m := range list {
		s.sweepManifest(string(m.ID), s.baseDir(m.ID))
		if len(g.users[m.ID]) == 0 && !s.held(string(m.ID)) && (keep == nil || !keep(m)) {
			ids = append(ids, m.ID)
		}
	}
	for _, d := range bad {
		if !errors.Is(d.Err, errNewer) {
			ids = append(ids, protocol.BaseID(d.ID))
		}
	}
	var removed []protocol.BaseID
	var failed error
	for _, id := range ids {
		err := s.RemoveBase(id)
		switch {
		case err == nil:
			removed = append(removed, id)
		case errors.Is(err, &protocol.Error{Code: protocol.CodeCheckpointInUse}):
		default:
			failed = errors.Join(failed, fmt.Errorf("sweep bases: %w", err))
		}
	}
	return removed, failed
}
