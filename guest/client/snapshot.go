package client

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
)

// SnapshotOptions of Snapshot.
type SnapshotOptions struct {
	Label string // at most protocol.MaxLabel bytes
	// Durable: return only when the checkpoint would survive the host.
	Durable bool
}

// Checkpoint is a return of Snapshot, or of a Restore or Finish that came back.
type Checkpoint struct {
	ID protocol.CheckpointID
	// Restored is false the first time, and true in each timeline that was
	// restored from this checkpoint or branched at it.
	Restored bool
	// Index and Branch are set in children of a branch at this checkpoint.
	Index   *int
	Branch  protocol.BranchID
	Payload Value // of who restored or branched
}

// Snapshot makes a checkpoint of the whole machine. It returns now, and again
// in each timeline that starts from the checkpoint.
func (c *Client) Snapshot(ctx context.Context, opt SnapshotOptions) (Checkpoint, error) {
	return c.checkpoint(ctx, protocol.CallSnapshot, protocol.SnapshotArgs{Label: opt.Label, Durable: opt.Durable})
}

func (c *Client) checkpoint(ctx context.Context, kind protocol.CallKind, args any) (Checkpoint, error) {
	var r protocol.SnapshotResult
	if err := c.call(ctx, kind, args, &r); err != nil {
		return Checkpoint{}, err
	}
	return Checkpoint{ID: r.ID, Restored: r.Restored, Index: r.Index, Branch: r.Branch, Payload: r.Payload}, nil
}

// RestoreOptions of Restore.
type RestoreOptions struct {
	Payload any // given to the Snapshot that returns there
	// DropPresent: make no checkpoint of the present, which ends.
	DropPresent bool
	// Detach leaves this timeline's descendants running instead of ending them.
	Detach bool
}

// Restore ends this timeline and goes on where the checkpoint was made. It
// returns with an error if that failed, and with Restored set when the kept
// present is restored later.
func (c *Client) Restore(ctx context.Context, id protocol.CheckpointID, opt RestoreOptions) (Checkpoint, error) {
	payload, err := encode(opt.Payload)
	if err != nil {
		return Checkpoint{}, err
	}
	return c.checkpoint(ctx, protocol.CallRestore, protocol.RestoreArgs{
		ID: id, Payload: payload, DropPresent: opt.DropPresent, Detach: opt.Detach,
	})
}

// FinishOptions of Finish.
type FinishOptions struct {
	Result any // delivered to the parent
	// Keep makes a final checkpoint, so that the parent can adopt this child.
	Keep bool
}

// Finish delivers a result and ends this timeline. It returns with an error if
// that failed, and with Restored set when the parent adopts this child.
func (c *Client) Finish(ctx context.Context, opt FinishOptions) (Checkpoint, error) {
	result, err := encode(opt.Result)
	if err != nil {
		return Checkpoint{}, err
	}
	return c.checkpoint(ctx, protocol.CallFinish, protocol.FinishArgs{Result: result, Keep: opt.Keep})
}
