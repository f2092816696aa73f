package checkpoint

import (
	"context"
	"path/filepath"

	"github.com/ratoon-project/ratoon/protocol"
)

// VerifyBase holds a base to its strong digest, once per file identity and
// modification time in the life of the store.
func (s *Store) VerifyBase(ctx context.Context, id protocol.BaseID) error {
	if err := s.CheckBase(id); err != nil {
		return err
	}
	m, err := s.Base(id)
	if err != nil {
		return err
	}
	if !m.Durable {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s is not durable and has no strong digest", baseName(id))
	}
	path := filepath.Join(s.baseDir(id), nameRAM)
	mark, err := fingerprintOf(path)
	if err != nil {
		return unusable(baseName(id), nameRAM, err)
	}
	s.mu.Lock()
	_, known := s.checked[mark]
	s.mu.Unlock()
	if known {
		return nil
	}
	if err := m.RAM.verify(ctx, path, nil); err != nil {
		return unusable(baseName(id), nameRAM, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked[mark] = struct{}{}
	return nil
}
