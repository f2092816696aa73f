package checkpoint

import (
	"errors"
	"io/fs"
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
	g, err := s.graph()
	if err != nil {
		return Dependents{}, err
	}
	return s.dependents(g, id), nil
}

func (s *Store) dependents(g graph, id protocol.CheckpointID) (d Dependents) {
	for _, b := range g.made[id] {
		if len(g.users[b]) > 0 || s.held(string(b)) {
			d.Bases = append(d.Bases, b)
			d.Checkpoints = append(d.Checkpoints, g.users[b]...)
		}
	}
	return d
}

// graph says what needs what. It stays true as long as refs is held exclusively
// and what is removed is taken out of it.
type graph struct {
	// users are the checkpoints over each base, also damaged ones as long as the
	// manifest can be read.
	users map[protocol.BaseID][]protocol.CheckpointID
	// made are the bases that were made from each checkpoint.
	made map[protocol.CheckpointID][]protocol.BaseID
	// newer are checkpoints of a newer format: they may need any base.
	newer []protocol.CheckpointID
}

func (s *Store) graph() (graph, error) {
	g := graph{users: map[protocol.BaseID][]protocol.CheckpointID{}, made: map[protocol.CheckpointID][]protocol.BaseID{}}
	bases, _, err := s.Bases()
	if err != nil {
		return g, err
	}
	for _, b := range bases {
		if b.From.Checkpoint != "" {
			g.made[b.From.Checkpoint] = append(g.made[b.From.Checkpoint], b.ID)
		}
	}
	names, err := entries(s.checkpoints())
	if err != nil {
		return g, typed(protocol.CodeInternal, "list checkpoints", err)
	}
	for _, name := range names {
		id, err := protocol.ParseCheckpointID(name)
		if err != nil {
			continue
		}
		m, err := s.summary(id)
		if err == nil {
			g.users[m.Base] = append(g.users[m.Base], id)
		} else if errors.Is(err, errNewer) {
			g.newer = append(g.newer, id)
		}
	}
	return g, nil
}

// without takes a checkpoint out.
func (g graph) without(id protocol.CheckpointID, base protocol.BaseID) {
	g.users[base] = slices.DeleteFunc(g.users[base], func(o protocol.CheckpointID) bool { return o == id })
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
	g, err := s.graph()
	if err != nil {
		return "", err
	}
	return s.detachFrom(g, id)
}

// detachFrom is detach for who holds refs and has the graph.
func (s *Store) detachFrom(g graph, id protocol.CheckpointID) (trash string, err error) {
	if s.held(string(id)) {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s is in use", checkpointName(id))
	}
	m, err := s.summary(id)
	if err == nil && m.Class == ClassPinned {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s is pinned", checkpointName(id)).With("pinned", true)
	}
	if d := s.dependents(g, id); len(d.Bases) > 0 {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s: based on it are %s", checkpointName(id),
			strings.Join(append(texts(d.Bases), texts(d.Checkpoints)...), ", ")).
			With("bases", texts(d.Bases)).With("checkpoints", texts(d.Checkpoints))
	}
	trash = s.trash(string(id))
	if err := rename(labelRemoveRename, s.checkpointDir(id), trash); err != nil {
		return "", err
	}
	s.drop(string(id))
	g.without(id, m.Base)
	return trash, nil
}

// atOnce is how many checkpoints are removed under one look at what needs them.
const atOnce = 64

// removeInternal removes those of class internal that nothing needs, and returns
// them.
func (s *Store) removeInternal(ids []protocol.CheckpointID) (removed []protocol.CheckpointID, failed error) {
	slices.Sort(ids) // the order in which locks are taken
	for batch := range slices.Chunk(ids, atOnce) {
		gone, err := s.removeBatch(batch)
		removed, failed = append(removed, gone...), errors.Join(failed, err)
	}
	return removed, failed
}

func (s *Store) removeBatch(ids []protocol.CheckpointID) (removed []protocol.CheckpointID, failed error) {
	for _, id := range ids {
		defer s.ids.lock(string(id))()
	}
	trash := map[protocol.CheckpointID]string{}
	s.refs.Lock()
	g, err := s.graph()
	for again := err == nil; again; { // one that went may have been what needed another
		again = false
		for _, id := range ids {
			if m, err := s.summary(id); trash[id] != "" || err == nil && m.Class != ClassInternal {
				continue
			}
			t, detachErr := s.detachFrom(g, id)
			switch {
			case detachErr == nil:
				trash[id], again = t, true
			case errors.Is(detachErr, &protocol.Error{Code: protocol.CodeCheckpointInUse}), errors.Is(detachErr, fs.ErrNotExist):
			default:
				err = errors.Join(err, detachErr)
			}
		}
		again = again && err == nil
	}
	s.refs.Unlock()
	for id, t := range trash {
		err = errors.Join(err, removeIfThere(s.tombstone(id)), s.empty(t))
		removed = append(removed, id)
	}
	if err != nil {
		err = typed(protocol.CodeInternal, "remove checkpoints", err)
	}
	return removed, err
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
	delete(s.baseManifests, protocol.BaseID(id))
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
