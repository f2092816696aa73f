package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/ratoon-project/ratoon/protocol"
)

// Condemn removes a checkpoint that cannot be used and leaves a note, so that
// Get answers CodeCheckpointLost with the reason until Remove is called.
func (s *Store) Condemn(id protocol.CheckpointID, reason string) error {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	defer s.ids.lock(string(id))()
	what := "condemn " + checkpointName(id)
	// The note first: between the two steps the id must not be unknown.
	next := filepath.Join(s.temporary(), string(id)+".lost")
	s.remember(next)
	defer s.forget(next)
	if err := writeFile(labelLostWrite, next, []byte(reason+"\n")); err != nil {
		return typed(protocol.CodeInternal, what, errors.Join(err, removeIfThere(next)))
	}
	if err := rename(labelLostRename, next, s.tombstone(id)); err != nil {
		return typed(protocol.CodeInternal, what, errors.Join(err, removeIfThere(next)))
	}
	trash := s.trash(string(id))
	s.refs.Lock()
	err := rename(labelRemoveRename, s.checkpointDir(id), trash)
	s.refs.Unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return typed(protocol.CodeInternal, what, err)
	}
	s.drop(string(id))
	if err := s.empty(trash); err != nil {
		return typed(protocol.CodeInternal, what, err)
	}
	return nil
}

// Recover is called once by the process that owns the store, before anything
// is restored. Checkpoints that were published in an earlier boot of the host
// and are not durable are read whole; those that fail, and those whose
// manifest cannot be read, are condemned and returned. Newer formats stay.
func (s *Store) Recover(ctx context.Context) ([]Damaged, error) {
	list, bad, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		if m.Durable || m.Boot == s.boot {
			continue
		}
		if err := s.Check(ctx, m.ID); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return nil, typed(protocol.CodeCancelled, "recover checkpoints", cause)
			}
			bad = append(bad, Damaged{string(m.ID), err})
		}
	}
	bad = slices.DeleteFunc(bad, func(d Damaged) bool { return protocol.CodeOf(d.Err) != protocol.CodeCheckpointLost })
	for _, d := range bad {
		s.log.Warn("checkpoint lost", "checkpoint", d.ID, "error", d.Err)
		if err := s.Condemn(protocol.CheckpointID(d.ID), d.Err.Error()); err != nil {
			return nil, err
		}
	}
	return bad, nil
}
