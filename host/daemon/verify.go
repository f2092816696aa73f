package daemon

import (
	"context"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// VerifyCheckpoints reads checkpoints (none: all) to the last byte, as
// checkpoint.Store.Examine does.
func (d *Daemon) VerifyCheckpoints(ctx context.Context, ids []protocol.CheckpointID, progress func(checkpoint.Progress), report func(checkpoint.Report) error) error {
	return d.store().Examine(ctx, ids, progress, report)
}
