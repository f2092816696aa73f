package checkpoint

import (
	"context"
	"errors"
	"io/fs"

	"github.com/ratoon-project/ratoon/protocol"
)

// Import takes a checkpoint from another store, like ImportBase; its base
// must be here already. A checkpoint that is here stays as it is. What is
// imported is published, not durable.
func (s *Store) Import(ctx context.Context, from *Store, id protocol.CheckpointID) error {
	m, err := from.Get(id)
	if err != nil {
		return err
	}
	if _, err := s.Get(id); err == nil {
		return nil
	}
	// From here on it counts as of this boot.
	if !m.Durable && m.Boot != from.boot {
		if err := from.Check(ctx, id); err != nil {
			return err
		}
	}
	p, err := s.Begin(id)
	if err != nil {
		return err
	}
	defer p.Discard()
	files, err := from.Files(id)
	if err != nil {
		return err
	}
	_, stateErr := linkOrCopy(ctx, labelImport, files.State, p.StatePath())
	_, pagesErr := linkOrCopy(ctx, labelImport, files.Pages, p.PagesPath())
	if err := errors.Join(stateErr, pagesErr); err != nil {
		return typed(protocol.CodeCaptureFailed, "import "+checkpointName(id), err)
	}
	err = p.Publish(ctx, m)
	if errors.Is(err, fs.ErrExist) {
		return nil // another import was faster
	}
	return err
}
