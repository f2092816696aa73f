package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
	got, err := strongSum(ctx, path)
	if err == nil && got != m.RAM.SHA256 {
		err = fmt.Errorf("%w: sha256 %s, want %s", errDamaged, got, m.RAM.SHA256)
	}
	if err != nil {
		return unusable(baseName(id), nameRAM, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked[mark] = struct{}{}
	return nil
}

func strongSum(ctx context.Context, path string) (string, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = copyContext(ctx, h, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	return hexSum(h), nil
}
