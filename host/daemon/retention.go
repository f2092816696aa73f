package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// policy says which checkpoints of class auto the sandbox keeps.
func (s *Sandbox) policy() checkpoint.Policy { return checkpoint.Policy{} }

// Retain removes the checkpoints of every sandbox whose time has come by its
// policy, and those of sandboxes that this host does not have once they expire.
// What is needed or pinned stays, and is tried again the next time. It returns
// what it removed, whatever fails.
func (d *Daemon) Retain(ctx context.Context, now time.Time) ([]protocol.CheckpointID, error) {
	list, err := d.Checkpoints()
	if err != nil {
		return nil, err
	}
	trees := map[protocol.SandboxID][]checkpoint.Manifest{}
	for _, m := range list {
		trees[m.Sandbox] = append(trees[m.Sandbox], m)
	}
	var removed []protocol.CheckpointID
	var errs []error
	for id, tree := range trees {
		p := checkpoint.Policy{KeepLast: len(tree)} // nobody's: by expiry only
		if s, err := d.Sandbox(string(id)); err == nil {
			p = s.policy()
		}
		for _, cp := range checkpoint.Expired(tree, p, now) {
			if ctx.Err() != nil {
				return removed, errors.Join(append(errs, context.Cause(ctx))...)
			}
			switch err := d.RemoveCheckpoint(ctx, cp); protocol.CodeOf(err) {
			case "":
				removed = append(removed, cp)
			case protocol.CodeCheckpointInUse, protocol.CodeUnknownCheckpoint:
			default:
				errs = append(errs, err)
			}
		}
	}
	return removed, errors.Join(errs...)
}
