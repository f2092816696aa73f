package checkpoint

import (
	"slices"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// RemoveBase removes a base. While a checkpoint names it or it is held, it
// answers CodeCheckpointInUse.
func (s *Store) RemoveBase(id protocol.BaseID) error {
	if _, err := protocol.ParseBaseID(string(id)); err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	defer s.ids.lock(string(id))()
	what := "remove " + baseName(id)
	trash, err := s.detachBase(id)
	if err != nil {
		return typed(protocol.CodeInternal, what, err)
	}
	if err := s.empty(trash); err != nil {
		return typed(protocol.CodeInternal, what, err)
	}
	return nil
}

func (s *Store) detachBase(id protocol.BaseID) (trash string, err error) {
	s.refs.Lock()
	defer s.refs.Unlock()
	g, err := s.graph()
	if err != nil {
		return "", err
	}
	there, err := exists(s.baseDir(id))
	if err != nil {
		return "", err
	}
	if !there {
		return "", protocol.Errorf(protocol.CodeNotFound, "%s does not exist", baseName(id))
	}
	if names := append(slices.Clone(g.users[id]), g.newer...); len(names) > 0 {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s: based on it are %s", baseName(id),
			strings.Join(texts(names), ", ")).With("checkpoints", texts(names))
	}
	if s.held(string(id)) {
		return "", protocol.Errorf(protocol.CodeCheckpointInUse, "%s is mapped by a virtual machine", baseName(id))
	}
	trash = s.trash(string(id))
	if err := rename(labelBaseRemoveRename, s.baseDir(id), trash); err != nil {
		return "", err
	}
	s.drop(string(id))
	return trash, nil
}
