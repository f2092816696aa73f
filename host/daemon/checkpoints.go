package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

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
	m, err := d.store().Get(id)
	if protocol.CodeOf(err) == protocol.CodeCheckpointLost {
		return d.engine.Remove(id) // nobody can use it
	}
	if err != nil {
		return err
	}
	s, err := d.Sandbox(string(m.Sandbox))
	if err != nil {
		return d.engine.Remove(id) // its sandbox is gone, or on another host
	}
	if sb, _, err := s.running(); err == nil {
		return sb.RemoveCheckpoint(ctx, id)
	}
	needed, err := sandbox.Needed(s.journal)
	if err != nil {
		return err
	}
	if needed[id] {
		return protocol.Errorf(protocol.CodeCheckpointInUse, "checkpoint %s is needed by an operation, a result or a hibernated timeline", id)
	}
	return d.engine.Remove(id)
}

// Dependents lists what RemoveCheckpoints removes besides a checkpoint, and the
// checkpoint last. It is CodeCheckpointInUse when something of it must stay.
func (d *Daemon) Dependents(id protocol.CheckpointID) ([]checkpoint.Manifest, error) {
	ids, err := d.store().Cascade(id)
	if err != nil {
		return nil, err
	}
	var out []checkpoint.Manifest
	for _, id := range ids {
		m, err := d.store().Get(id)
		if protocol.CodeOf(err) == protocol.CodeCheckpointLost {
			m, err = checkpoint.Manifest{ID: id}, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// RemoveCheckpoints removes a checkpoint with all that depends on it. It
// returns what it removed, also when one that an operation needs ends it.
func (d *Daemon) RemoveCheckpoints(ctx context.Context, id protocol.CheckpointID) (removed []protocol.CheckpointID, err error) {
	list, err := d.Dependents(id)
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		if err := d.RemoveCheckpoint(ctx, m.ID); err != nil {
			return removed, err
		}
		removed = append(removed, m.ID)
	}
	return removed, nil
}

// removeCheckpoints removes all of a sandbox that has ended. Those that are
// pinned, or under what is pinned or another sandbox's, stay.
func (d *Daemon) removeCheckpoints(ctx context.Context, s *Sandbox) error {
	list, _, err := d.store().List()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(list) { // what is based on others is newer than they
		if m.Sandbox != s.id || ctx.Err() != nil {
			continue
		}
		err := d.engine.Remove(m.ID)
		if protocol.CodeOf(err) == protocol.CodeCheckpointInUse {
			d.log.Info("checkpoint of a removed sandbox stays", "checkpoint", m.ID, "sandbox", s.id, "reason", err)
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// Pin keeps a checkpoint from being removed until it is unpinned.
func (d *Daemon) Pin(ctx context.Context, id protocol.CheckpointID, pinned bool) error {
	if pinned {
		return d.store().Pin(ctx, id)
	}
	return d.store().Unpin(id)
}

// Expire says when a checkpoint may go; the zero time: when it is removed.
func (d *Daemon) Expire(id protocol.CheckpointID, at time.Time) error {
	return d.store().SetExpiry(id, at)
}

// Usage is what takes disk space, in bytes.
type Usage struct {
	checkpoint.Usage
	checkpoint.TreesUse
}

// Usage adds up the disk space of all checkpoints and bases.
func (d *Daemon) Usage() (u Usage, err error) {
	if u.Usage, err = d.store().Usage(); err != nil {
		return u, err
	}
	u.TreesUse, err = d.store().Trees()
	return u, err
}
