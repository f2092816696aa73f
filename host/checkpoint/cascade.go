package checkpoint

import (
	"slices"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// Cascade lists what must be removed so that a checkpoint can be: those over
// bases that were made from it, and so on, and last the checkpoint itself. It
// removes nothing. One that is pinned or held, or a base that is mapped, is
// CodeCheckpointInUse, since Remove would refuse it half-way.
func (s *Store) Cascade(id protocol.CheckpointID) ([]protocol.CheckpointID, error) {
	if _, err := s.Get(id); err != nil && protocol.CodeOf(err) != protocol.CodeCheckpointLost {
		return nil, err
	}
	g, err := s.graph()
	if err != nil {
		return nil, err
	}
	var out []protocol.CheckpointID
	var mapped []protocol.BaseID
	var kept []protocol.CheckpointID
	var visit func(protocol.CheckpointID)
	visit = func(id protocol.CheckpointID) {
		if slices.Contains(out, id) {
			return
		}
		for _, b := range g.made[id] {
			if s.held(string(b)) {
				mapped = append(mapped, b)
			}
			for _, user := range g.users[b] {
				visit(user)
			}
		}
		if m, err := s.summary(id); err == nil && m.Class == ClassPinned || s.held(string(id)) {
			kept = append(kept, id)
		}
		out = append(out, id)
	}
	visit(id)
	if len(mapped)+len(kept) > 0 {
		e := protocol.Errorf(protocol.CodeCheckpointInUse, "%s cannot be removed with what is based on it: pinned or in use are %s", checkpointName(id),
			strings.Join(append(texts(mapped), texts(kept)...), ", "))
		return nil, e.With("bases", texts(mapped)).With("checkpoints", texts(kept))
	}
	return out, nil
}
