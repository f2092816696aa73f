package sandbox

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
)

// RemoveCheckpoint removes a checkpoint for an operator. One that an operation,
// a result or a hibernated timeline needs is CodeCheckpointInUse.
func (s *Sandbox) RemoveCheckpoint(ctx context.Context, id protocol.CheckpointID) error {
	_, done, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := s.garbage.enter(ctx); err != nil {
		return err
	}
	defer s.garbage.leave()
	s.mu.Lock()
	pinned := s.pins[id] > 0
	s.mu.Unlock()
	used, err := Needed(s.journal)
	if err != nil {
		return err
	}
	if pinned || used[id] {
		return protocol.Errorf(protocol.CodeCheckpointInUse, "checkpoint %s is needed by an operation, a result or a hibernated timeline", id)
	}
	return s.checkpoints.Remove(ctx, id)
}
