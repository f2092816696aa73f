package daemon

import (
	"context"
	"errors"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Snapshot makes a checkpoint of the timeline that holds a node.
func (s *Sandbox) Snapshot(ctx context.Context, node string, o sandbox.SnapshotOptions) (checkpoint.Manifest, error) {
	sb, _, err := s.running()
	if err != nil {
		return checkpoint.Manifest{}, err
	}
	id, err := sb.Snapshot(ctx, node, o)
	if err != nil {
		return checkpoint.Manifest{}, err
	}
	return s.d.Checkpoint(id)
}

// Restore replaces the timeline that holds a node by one loaded from a
// checkpoint.
func (s *Sandbox) Restore(ctx context.Context, node string, id protocol.CheckpointID, o sandbox.RestoreOptions) error {
	sb, _, err := s.running()
	if err != nil {
		return err
	}
	return sb.Restore(ctx, node, id, o)
}

// Branch makes children at a checkpoint; without one, at a new one of the
// first line.
func (s *Sandbox) Branch(ctx context.Context, a protocol.BranchArgs) (protocol.BranchID, error) {
	sb, _, err := s.running()
	if err != nil {
		return "", err
	}
	if a.At == "" {
		if a.At, err = sb.Snapshot(ctx, "", sandbox.SnapshotOptions{Label: "branch point"}); err != nil {
			return "", err
		}
	}
	return sb.Branch(ctx, a)
}

// Tree is every timeline and checkpoint of the sandbox.
func (s *Sandbox) Tree() (protocol.TreeResult, error) {
	all, err := s.d.Checkpoints()
	if err != nil {
		return protocol.TreeResult{}, err
	}
	var own []sandbox.Checkpoint
	for _, m := range all {
		if m.Sandbox == s.id {
			own = append(own, describe(m))
		}
	}
	return sandbox.ReadTree(s.journal, s.id, own)
}

// Checkpoints lists those of all sandboxes, oldest first, without those that
// only operations need.
func (d *Daemon) Checkpoints() ([]checkpoint.Manifest, error) {
	list, damaged, err := d.store().List()
	for _, bad := range damaged {
		d.log.Warn("damaged checkpoint", "checkpoint", bad.ID, "error", bad.Err)
	}
	out := list[:0]
	for _, m := range list {
		if m.Class != checkpoint.ClassInternal {
			out = append(out, m)
		}
	}
	return out, err
}

// Checkpoint finds one.
func (d *Daemon) Checkpoint(id protocol.CheckpointID) (checkpoint.Manifest, error) {
	return d.store().Get(id)
}

// RemoveCheckpoint removes one that nothing needs.
func (d *Daemon) RemoveCheckpoint(ctx context.Context, id protocol.CheckpointID) error {
	m, err := d.Checkpoint(id)
	if err != nil {
		return err
	}
	s, err := d.Sandbox(string(m.Sandbox))
	if err != nil {
		return d.store().Remove(id) // its sandbox is gone
	}
	if sb, _, err := s.running(); err == nil {
		return sb.RemoveCheckpoint(ctx, id)
	}
	return d.store().Remove(id)
}

// removeCheckpoints removes all of a sandbox that has ended.
func (d *Daemon) removeCheckpoints(ctx context.Context, s *Sandbox) error {
	list, _, err := d.store().List()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range list {
		if m.Sandbox == s.id && ctx.Err() == nil {
			errs = append(errs, d.store().Remove(m.ID))
		}
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}
