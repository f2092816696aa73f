package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// PendingBase is a base that is being made. It is used by one goroutine.
type PendingBase struct {
	store *Store
	id    protocol.BaseID
	dir   string
	end   sync.Once
	// ram holds the checksums when they are known before.
	ram BaseRAM
}

// BeginBase makes a temporary directory for a base. The caller ends it with
// Publish or Discard.
func (s *Store) BeginBase(id protocol.BaseID) (*PendingBase, error) {
	if _, err := protocol.ParseBaseID(string(id)); err != nil {
		return nil, err
	}
	if err := s.writable(); err != nil {
		return nil, err
	}
	what := "begin " + baseName(id)
	if there, err := exists(s.baseDir(id)); err != nil {
		return nil, typed(protocol.CodeCaptureFailed, what, err)
	} else if there {
		return nil, typed(protocol.CodeInternal, what, fs.ErrExist)
	}
	if err := fault.Point(labelBaseBegin); err != nil {
		return nil, typed(protocol.CodeCaptureFailed, what, err)
	}
	dir, err := s.makeTemporary(string(id))
	if err != nil {
		return nil, typed(protocol.CodeCaptureFailed, what, err)
	}
	return &PendingBase{store: s, id: id, dir: dir}, nil
}

// RAMPath is where the guest's RAM goes.
func (p *PendingBase) RAMPath() string { return filepath.Join(p.dir, nameRAM) }

// StatePath is where a template's device state goes; other bases have none.
func (p *PendingBase) StatePath() string { return filepath.Join(p.dir, nameState) }

// Discard removes what was written; after Publish it does nothing.
func (p *PendingBase) Discard() {
	p.end.Do(func() {
		if err := os.RemoveAll(p.dir); err != nil {
			p.store.log.Warn("remove temporary directory", "dir", p.dir, "error", err)
		}
		p.store.forget(p.dir)
	})
}

// Publish completes the manifest (sizes, the state's crc32c, creation time if
// zero), writes it and renames the directory into place. Nobody may write the
// RAM file from then on: a VMM that had it mapped shared must be gone. If
// Publish fails, everything that was written is removed.
func (p *PendingBase) Publish(ctx context.Context, m BaseManifest) error {
	err := p.publish(ctx, m)
	if err != nil {
		p.Discard()
		return typed(protocol.CodeCaptureFailed, "publish "+baseName(p.id), err)
	}
	p.end.Do(func() { p.store.forget(p.dir) })
	return nil
}

func (p *PendingBase) publish(ctx context.Context, m BaseManifest) error {
	if m.ID == "" {
		m.ID = p.id
	}
	if m.ID != p.id {
		return protocol.Errorf(protocol.CodeInternal, "manifest names %q", m.ID)
	}
	if m.Created.IsZero() {
		m.Created = time.Now()
	}
	m.Created, m.Boot, m.Durable = m.Created.UTC().Round(0), p.store.boot, false
	size, err := regularSize(p.RAMPath())
	if err != nil {
		return fmt.Errorf("read ram: %w", err)
	}
	m.RAM = BaseRAM{Size: size}
	if p.ram.Size == size {
		m.RAM = p.ram.known()
	}
	chmod := os.Chmod(p.RAMPath(), fileMode)
	m.State = nil
	state, err := fileOf(p.StatePath())
	switch {
	case err == nil:
		m.State = &state
		chmod = errors.Join(chmod, os.Chmod(p.StatePath(), fileMode))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read state: %w", err)
	}
	if chmod != nil {
		return chmod
	}
	if err := p.writeManifest(m); err != nil {
		return err
	}
	// What the base was made from must not be removed before the reference
	// is visible.
	p.store.refs.RLock()
	defer p.store.refs.RUnlock()
	if m.From.Checkpoint != "" {
		if _, err := p.store.read(m.From.Checkpoint); err != nil {
			return err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return rename(labelBasePublishRename, p.dir, p.store.baseDir(p.id))
}

func (p *PendingBase) writeManifest(m BaseManifest) error {
	if err := m.validate(); err != nil {
		return err
	}
	data, err := seal(kindBase, m)
	if err != nil {
		return err
	}
	if err := writeFile(labelBaseManifestWrite, filepath.Join(p.dir, nameManifest), data); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}
