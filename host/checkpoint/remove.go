package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Dependents are what would lose their origin with a checkpoint: the bases
// made from it that are in use, and the checkpoints over these.
type Dependents struct {
	Bases       []protocol.BaseID
	Checkpoints []protocol.CheckpointID
}

// Dependents finds what depends on a checkpoint. A base made from it that no
// checkpoint names and nobody holds is not in use: SweepBases takes it.
func (s *Store) Dependents(id protocol.CheckpointID) (Dependents, error) {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return Dependents{}, err
	}
	bases, _, err := s.Bases()
	if err != nil {
		return Dependents{}, err
	}
	bases = slices.DeleteFunc(bases, func(b BaseManifest) bool { return b.From.Checkpoint != id })
	if len(bases) == 0 {
		return Dependents{}, nil
	}
	users, _, err := s.users()
	if err != nil {
		return Dependents{}, err
	}
	var d Dependents
	for _, b := range bases {
		if len(users[b.ID]) > 0 || s.held(string(b.ID)) {
			d.Bases = append(d.Bases, b.ID)
			d.Checkpoints = append(d.Checkpoints, users[b.ID]...)
		}
	}
	return d, nil
}

// users maps bases to the checkpoints over them, whose files may be damaged
// as long as the manifest can be read. Checkpoints of a newer format are in
// the second list: they may need any base.
func (s *Store) users() (users map[protocol.BaseID][]protocol.CheckpointID, newer []protocol.CheckpointID, err error) {
	names, err := entries(s.checkpoints())
	if err != nil {
		return nil, nil, typed(protocol.CodeInternal, "list checkpoints", err)
	}
	users = map[protocol.BaseID][]protocol.CheckpointID{}
	for _, name := range names {
		id, err := protocol.ParseCheckpointID(name)
		if err != nil {
			continue
		}
		m, err := s.summary(id)
		if err == nil {
			users[m.Base] = append(users[m.Base], id)
		} else if errors.Is(err, errNewer) {
			newer = append(newer, id)
		}
	}
	return users, newer, nil
}

// Remove removes a checkpoint, damaged or not, and forgets that it was lost.
// While others depend on it, or it is held or pinned, it answers
// CodeCheckpointInUse with "bases" and "checkpoints", or "pinned", in the
// details.
func (s *Store) Remove(id protocol.CheckpointID) error {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	defer s.ids.lock(string(id))()
	what := "remove " + checkpointName(id)
	there, err := exists(s.checkpointDir(id))
	if err != nil {
		return typed(protocol.CodeInternal, what, err)
	}
	if !there {
		if os.Remove(s.tombstone(id)) == nil {
			return nil
		}
		return s.absent(id)
	}
	trash, err := s.detach(id)
	if err != nil {
		return typed(protocol.CodeInternal, what, err)
	}
	// A condemning that was cut short leaves a note beside the files.
	err = errors.Join(removeIfThere(s.tombstone(id)), s.empty(trash))
	if err != nil {
		return typed(protocol.CodeInternal, what, err)
	}
	return nil
}

// detach takes a checkpoint out of its place, unless others need it.
func (s *Store) detach(id protocol.CheckpointID) (trash string, err error) {
	s.refs.Lock()
	defer s.refs.Unlock()
	if s.held(string(id)) {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s is in use", checkpointName(id))
	}
	if m, err := s.summary(id); err == nil && m.Class == ClassPinned {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s is pinned", checkpointName(id)).With("pinned", true)
	}
	d, err := s.Dependents(id)
	if err != nil {
		return "", err
	}
	if len(d.Bases) > 0 {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s: based on it are %s", checkpointName(id),
			strings.Join(append(texts(d.Bases), texts(d.Checkpoints)...), ", ")).
			With("bases", texts(d.Bases)).With("checkpoints", texts(d.Checkpoints))
	}
	trash = s.trash(string(id))
	if err := rename(labelRemoveRename, s.checkpointDir(id), trash); err != nil {
		return "", err
	}
	s.drop(string(id))
	return trash, nil
}

func texts[T ~string](ids []T) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// trash is a fresh name under tmp; a directory there is removed by Sweep.
func (s *Store) trash(id string) string {
	return filepath.Join(s.temporary(), id+".removed."+string(protocol.NewVMID()))
}

// drop forgets what was noted of an id.
func (s *Store) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.failed, id)
	delete(s.summaries, protocol.CheckpointID(id))
}

// empty frees the space of what was detached. If it fails, the entry is gone
// all the same and Sweep frees the rest.
func (s *Store) empty(trash string) error {
	if err := fault.Point(labelRemoveUnlink); err != nil {
		return err
	}
	n := freeable(trash)
	if err := os.RemoveAll(trash); err != nil {
		return err
	}
	s.freed.Add(n)
	return nil
}

// Freed is how many bytes of disk this Store has given back since it was
// opened.
func (s *Store) Freed() int64 { return s.freed.Load() }
