package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratoon-project/ratoon/protocol"
)

// Import takes a checkpoint from another store, like ImportBase; its base
// must be here already. A checkpoint that is here stays as it is.
func (s *Store) Import(ctx context.Context, from *Store, id protocol.CheckpointID) error {
	if _, err := s.Get(id); err == nil {
		return nil
	}
	m, err := from.Get(id)
	if err != nil {
		return err
	}
	files, err := from.Files(id)
	if err != nil {
		return err
	}
	p, err := s.Begin(id)
	if err != nil {
		return err
	}
	defer p.Discard()
	_, stateErr := linkOrCopy(ctx, files.State, p.StatePath())
	_, pagesErr := linkOrCopy(ctx, files.Pages, p.PagesPath())
	if err := errors.Join(stateErr, pagesErr); err != nil {
		return fmt.Errorf("import checkpoint %s: %w", id, err)
	}
	m.Durable, m.Digest = false, ""
	return p.Publish(ctx, m)
}
