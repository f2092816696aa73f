package checkpoint

import (
	"context"
	"path/filepath"

	"github.com/ratoon-project/ratoon/protocol"
)

// MakeBaseDurable fsyncs a base and records its strong digest. MakeDurable
// does it for the base of the checkpoint; calling it early, for a template,
// takes it out of the way.
func (s *Store) MakeBaseDurable(ctx context.Context, id protocol.BaseID) error {
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.makeBaseDurable(ctx, id); err != nil {
		return typed(protocol.CodeCaptureFailed, "make durable "+baseName(id), err)
	}
	return nil
}

func (s *Store) makeBaseDurable(ctx context.Context, id protocol.BaseID) error {
	// One at a time: the checkpoints over one base would all read it.
	defer s.ids.lock(string(id))()
	if err := s.failure(string(id)); err != nil {
		return err
	}
	if err := s.CheckBase(id); err != nil {
		return err
	}
	m, err := s.Base(id)
	if err != nil || m.Durable {
		return err
	}
	dir := s.baseDir(id)
	steps := []syncStep{{labelBaseRAMSync, filepath.Join(dir, nameRAM)}}
	if m.State != nil {
		steps = append(steps, syncStep{labelBaseStateSync, filepath.Join(dir, nameState)})
	}
	steps = append(steps, syncStep{labelBaseDirSync, dir},
		syncStep{labelBaseParentSync, s.bases()}, syncStep{labelBaseParentSync, s.dir}, syncStep{labelBaseParentSync, filepath.Dir(s.dir)})
	if err := s.syncAll(string(id), steps); err != nil {
		return err
	}
	if m.RAM = m.RAM.known(); m.RAM.SHA256 == "" {
		if m.RAM, err = sumRAM(ctx, filepath.Join(dir, nameRAM)); err != nil {
			return err
		}
	}
	if m.State != nil {
		if m.State.SHA256, err = scanFile(ctx, filepath.Join(dir, nameState), *m.State); err != nil {
			return err
		}
	}
	m.Durable = true
	data, err := seal(kindBase, m)
	if err != nil {
		return err
	}
	if err := replaceManifest(dir, data, true); err != nil {
		s.fail(string(id), err)
		return err
	}
	return nil
}
