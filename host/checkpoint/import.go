package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/ratoon-project/ratoon/protocol"
)

// Import takes a checkpoint with its base from another store, like ImportBase. A
// checkpoint that is here stays as it is. What is imported is published, not
// durable.
func (s *Store) Import(ctx context.Context, from *Store, id protocol.CheckpointID) error {
	for {
		before, err := from.Get(id)
		if err != nil {
			return err
		}
		if err = s.importAs(ctx, from, before); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// Its files went: compacted by the other store's owner, or gone.
		if after, readErr := from.Get(id); readErr != nil || after.storedAs(before) {
			return errors.Join(err, readErr)
		}
	}
}

func (s *Store) importAs(ctx context.Context, from *Store, m Manifest) error {
	id := m.ID
	if _, err := s.Get(id); err == nil {
		return nil
	}
	// From here on it counts as of this boot.
	if !m.Durable && m.Boot != from.boot {
		if err := from.Check(ctx, id); err != nil {
			return err
		}
	}
	defer s.hold(string(m.Base))() // also before it is here
	if err := s.ImportBase(ctx, from, m.Base); err != nil {
		return err
	}
	p, err := s.Begin(id)
	if err != nil {
		return err
	}
	defer p.Discard()
	release, err := s.importObjects(ctx, from, m)
	if err != nil {
		return typed(protocol.CodeCaptureFailed, "import "+checkpointName(id), err)
	}
	defer release()
	files, err := from.Files(id)
	if err != nil {
		return err
	}
	_, err = linkOrCopy(ctx, labelImport, files.State, p.StatePath())
	if err == nil && m.Files.Frames == nil {
		_, err = linkOrCopy(ctx, labelImport, files.Pages, p.PagesPath())
	}
	if err != nil {
		return typed(protocol.CodeCaptureFailed, "import "+checkpointName(id), err)
	}
	err = p.Publish(ctx, m)
	if errors.Is(err, fs.ErrExist) {
		return nil // another import was faster
	}
	return err
}

// importObjects takes the files of frames that a checkpoint needs from another
// store. Until release they are not swept.
func (s *Store) importObjects(ctx context.Context, from *Store, m Manifest) (release func(), err error) {
	names := m.Files.Frames.names()
	release = s.holdObjects(names)
	for _, name := range names {
		if err = s.importObject(ctx, from, name); err != nil {
			release()
			return nil, fmt.Errorf("%s: %w", fileOfObject(name), err)
		}
	}
	return release, nil
}

func (s *Store) importObject(ctx context.Context, from *Store, name string) (err error) {
	to := s.objectPath(name)
	if there, err := exists(to); err != nil || there {
		return err
	}
	next := s.trash("object")
	s.remember(next)
	defer s.forget(next)
	defer func() {
		if err != nil {
			err = errors.Join(err, removeIfThere(next))
		}
	}()
	linked, err := linkOrCopy(ctx, labelImport, from.objectPath(name), next)
	if err == nil && !linked {
		err = os.Chmod(next, fileMode)
	}
	if err == nil {
		err = syncPath(labelObjectSync, next)
	}
	if err == nil {
		err = rename(labelObjectRename, next, to)
	}
	if err != nil {
		return err
	}
	return s.syncObjects()
}
