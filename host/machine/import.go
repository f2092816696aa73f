package machine

import (
	"context"
	"errors"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Describe is a manifest as the coordinator sees it.
func Describe(m checkpoint.Manifest) sandbox.Checkpoint { return fromManifest(m) }

// Import takes a checkpoint of another run directory, with its base, into
// this engine's store. It reports whether that run has it.
func (e *Engine) Import(ctx context.Context, run string, id protocol.CheckpointID) (bool, error) {
	other, err := checkpoint.Open(run, checkpoint.Options{ReadOnly: true, Log: e.log})
	if err != nil {
		return false, err
	}
	m, err := other.Get(id)
	if errors.Is(err, protocol.Errorf(protocol.CodeUnknownCheckpoint, "")) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if err := m.Compatible(e.platform()); err != nil {
		return true, err
	}
	if err := e.store.ImportBase(ctx, other, m.Base); err != nil {
		return true, err
	}
	return true, e.store.Import(ctx, other, id)
}
