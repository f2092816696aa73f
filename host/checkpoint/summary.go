package checkpoint

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// fingerprint tells whether a file may have changed since it was read.
type fingerprint struct {
	dev, ino, size uint64
	mtime          unix.Timespec
}

func fingerprintOf(path string) (fingerprint, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fingerprint{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return fingerprint{uint64(st.Dev), st.Ino, uint64(st.Size), st.Mtim}, nil
}

// summarized is a manifest that was read.
type summarized[M any] struct {
	mark     fingerprint
	manifest M
}

// summary is read without the run table, which is most of a manifest: it is
// decoded once, as long as its file stays the same.
func (s *Store) summary(id protocol.CheckpointID) (Manifest, error) {
	mark, err := fingerprintOf(filepath.Join(s.checkpointDir(id), nameManifest))
	if err != nil {
		return s.read(id) // says why
	}
	s.mu.Lock()
	known, ok := s.summaries[id]
	s.mu.Unlock()
	if ok && known.mark == mark {
		return known.manifest, nil
	}
	m, err := s.read(id)
	if err != nil {
		return m, err
	}
	m.Files.Pages.Runs = nil
	if f := m.Files.Frames; f != nil {
		lean := *f
		lean.pieces = nil
		m.Files.Frames = &lean
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.summaries[id] = summarized[Manifest]{mark, m}
	return m, nil
}
