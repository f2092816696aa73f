package checkpoint

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ratoon-project/ratoon/protocol"
)

// MakeDurable fsyncs a checkpoint, the base under it and their directories,
// records strong digests (holding the files to their crc32c while reading)
// and replaces the manifest. The workspace log up to the checkpoint's
// position is the caller's to make durable first. A durable checkpoint
// answers at once.
func (s *Store) MakeDurable(ctx context.Context, id protocol.CheckpointID) error {
	m, err := s.Get(id)
	if err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	what := "make durable " + checkpointName(id)
	if err := s.failure(string(id)); err != nil {
		return typed(protocol.CodeCaptureFailed, what, err)
	}
	if m.Durable {
		return nil
	}
	if err := s.makeBaseDurable(ctx, m.Base); err != nil {
		return typed(protocol.CodeCaptureFailed, what, err)
	}
	dir := s.checkpointDir(id)
	steps := []syncStep{{labelStateSync, filepath.Join(dir, nameState)}}
	if m.Files.Frames == nil { // files of frames are durable before they are named
		steps = append(steps, syncStep{labelPagesSync, filepath.Join(dir, namePages)})
	}
	steps = append(steps, syncStep{labelDirSync, dir}, syncStep{labelParentSync, s.checkpoints()}, syncStep{labelParentSync, s.dir}, syncStep{labelParentSync, filepath.Dir(s.dir)})
	if err := s.syncAll(string(id), steps); err != nil {
		return s.gone(id, typed(protocol.CodeCaptureFailed, what, err))
	}
	sums, err := s.scan(ctx, id, io.Discard)
	if err != nil {
		return typed(protocol.CodeCaptureFailed, what, err)
	}
	err = s.rewrite(id, func(m *Manifest) {
		m.Files.State.SHA256, m.Files.Pages.SHA256 = sums.state, sums.pages
		m.Durable, m.Digest = true, m.contentDigest()
	})
	if err != nil {
		s.fail(string(id), err)
		return typed(protocol.CodeCaptureFailed, what, err)
	}
	return nil
}

// rewrite replaces a manifest atomically; one that is or becomes durable is
// fsynced before and after the rename.
func (s *Store) rewrite(id protocol.CheckpointID, change func(*Manifest)) error {
	defer s.ids.lock(string(id))()
	m, err := s.read(id)
	if err != nil {
		return err
	}
	change(&m)
	data, err := m.Encode()
	if err != nil {
		return err
	}
	return replaceManifest(s.checkpointDir(id), data, m.Durable)
}

func replaceManifest(dir string, data []byte, durable bool) (err error) {
	next := filepath.Join(dir, nameManifestNew)
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(next))
		}
	}()
	if err := writeFile(labelRewriteWrite, next, data); err != nil {
		return err
	}
	if durable {
		if err := syncPath(labelRewriteSync, next); err != nil {
			return err
		}
	}
	if err := rename(labelRewriteRename, next, filepath.Join(dir, nameManifest)); err != nil {
		return err
	}
	if durable {
		return syncPath(labelRewriteDirSync, dir)
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncStep is one fsync and its fault label.
type syncStep struct{ label, path string }

// syncAll fsyncs in order. After a failure the kernel may mark pages clean
// that never reached the disk, so that the next fsync succeeds: the failure
// is remembered, and answered again instead.
func (s *Store) syncAll(id string, steps []syncStep) error {
	for _, step := range steps {
		if err := syncPath(step.label, step.path); err != nil {
			s.fail(id, err)
			return err
		}
	}
	return nil
}

func (s *Store) fail(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[id] = err
}

func (s *Store) failure(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed[id]
}

// gone gives CodeUnknownCheckpoint precedence when the checkpoint was removed
// while err arose.
func (s *Store) gone(id protocol.CheckpointID, err error) error {
	if there, statErr := exists(s.checkpointDir(id)); statErr == nil && !there {
		return s.absent(id)
	}
	return err
}
