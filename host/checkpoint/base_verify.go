package checkpoint

import (
	"context"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// fingerprint tells whether a file may have changed since it was read.
type fingerprint struct {
	dev, ino, size uint64
	mtime          unix.Timespec
}

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
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return unusable(baseName(id), nameRAM, err)
	}
	mark := fingerprint{uint64(st.Dev), st.Ino, uint64(st.Size), st.Mtim}
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
