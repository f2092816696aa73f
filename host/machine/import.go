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
// this engine's store; its machines are of this kind. It reports whether that run has it.
func (m *Machines) Import(ctx context.Context, run string, id protocol.CheckpointID) (bool, error) {
	other, err := checkpoint.Open(run, checkpoint.Options{ReadOnly: true, Log: m.log})
	if err != nil {
		return false, err
	}
	found, err := other.Get(id)
	if errors.Is(err, protocol.Errorf(protocol.CodeUnknownCheckpoint, "")) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if err := found.Compatible(m.platform()); err != nil {
		return true, err
	}
	return true, m.store.Import(ctx, other, id)
}
