package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Pending is a checkpoint that is being written. It is used by one goroutine.
type Pending struct {
	store *Store
	id    protocol.CheckpointID
	dir   string
	end   sync.Once
}

// Begin makes a temporary directory for a checkpoint. The caller ends it with
// Publish or Discard.
func (s *Store) Begin(id protocol.CheckpointID) (*Pending, error) {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return nil, err
	}
	if err := s.writable(); err != nil {
		return nil, err
	}
	what := "begin " + checkpointName(id)
	if there, err := exists(s.checkpointDir(id)); err != nil {
		return nil, typed(protocol.CodeCaptureFailed, what, err)
	} else if there {
		return nil, typed(protocol.CodeInternal, what, fs.ErrExist)
	}
	if err := fault.Point(labelBegin); err != nil {
		return nil, typed(protocol.CodeCaptureFailed, what, err)
	}
	dir, err := s.makeTemporary(string(id))
	if err != nil {
		return nil, typed(protocol.CodeCaptureFailed, what, err)
	}
	return &Pending{store: s, id: id, dir: dir}, nil
}

// StatePath is where the device state goes.
func (p *Pending) StatePath() string { return filepath.Join(p.dir, nameState) }

// PagesPath is where the runs with data go, one after another.
func (p *Pending) PagesPath() string { return filepath.Join(p.dir, namePages) }

// Discard removes what was written; after Publish it does nothing.
func (p *Pending) Discard() {
	p.end.Do(func() {
		if err := os.RemoveAll(p.dir); err != nil {
			p.store.log.Warn("remove temporary directory", "dir", p.dir, "error", err)
		}
		p.store.forget(p.dir)
	})
}

// Publish completes the manifest (sizes, the state's crc32c, format, boot),
// writes it and renames the directory into place. From then on Get knows the
// id. Nothing is fsynced. m gives the run table; its base must be in the
// store. If Publish fails, everything that was written is removed.
func (p *Pending) Publish(ctx context.Context, m Manifest) error {
	err := p.publish(ctx, m)
	if err != nil {
		p.Discard()
		return typed(protocol.CodeCaptureFailed, "publish "+checkpointName(p.id), err)
	}
	p.end.Do(func() { p.store.forget(p.dir) })
	return nil
}

func (p *Pending) publish(ctx context.Context, m Manifest) error {
	if m.ID == "" {
		m.ID = p.id
	}
	if m.ID != p.id {
		return protocol.Errorf(protocol.CodeInternal, "manifest names %q", m.ID)
	}
	m.Boot, m.Durable, m.Digest = p.store.boot, false, ""
	if err := p.complete(&m); err != nil {
		return err
	}
	data, err := m.Encode()
	if err != nil {
		return err
	}
	if err := writeFile(labelManifestWrite, filepath.Join(p.dir, nameManifest), data); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	// The base must not be removed between this look and the rename, which
	// makes the reference visible.
	p.store.refs.RLock()
	defer p.store.refs.RUnlock()
	base, err := p.store.Base(m.Base)
	if err != nil {
		return err
	}
	if end := m.Files.Pages.Runs.End(); end > base.RAM.Size {
		return fmt.Errorf("runs end at %d, the base at %d", end, base.RAM.Size)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return rename(labelPublishRename, p.dir, p.store.checkpointDir(p.id))
}

// complete fills in what the files themselves say.
func (p *Pending) complete(m *Manifest) error {
	state, err := fileOf(p.StatePath())
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	m.Files.State = state
	if m.Files.Frames != nil { // of an import, which has them already
		return os.Chmod(p.StatePath(), fileMode)
	}
	size, err := regularSize(p.PagesPath())
	if errors.Is(err, fs.ErrNotExist) && m.Files.Pages.Runs.Data() == 0 {
		err = writeFile(labelPagesCreate, p.PagesPath(), nil)
	}
	if err != nil {
		return fmt.Errorf("read pages: %w", err)
	}
	m.Files.Pages.Size, m.Files.Pages.SHA256 = size, ""
	return errors.Join(os.Chmod(p.StatePath(), fileMode), os.Chmod(p.PagesPath(), fileMode))
}

// fileOf reads a small file and describes it.
func fileOf(path string) (File, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return File{}, err
	}
	sum := crc32.New(castagnoli)
	n, err := copyContext(context.Background(), sum, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return File{}, err
	}
	return File{Size: n, CRC32C: sum.Sum32()}, nil
}
