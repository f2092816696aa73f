package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Collected is what Collect removed.
type Collected struct {
	// Expired are checkpoints that retention removed.
	Expired []protocol.CheckpointID `json:"expired"`
	machine.Collected
}

// NewCollected is the report of nothing, in which no list is nil.
func NewCollected() Collected {
	return Collected{Expired: []protocol.CheckpointID{}, Collected: machine.NewCollected()}
}

// Collect removes what no sandbox needs: checkpoints whose time has come, those
// of class internal that no operation needs, bases, old templates, and what was
// cut short. It may run at any time; two at once wait for each other. What it
// has removed is right also with an error.
func (d *Daemon) Collect(ctx context.Context) (Collected, error) {
	c := NewCollected()
	select {
	case d.collecting <- struct{}{}:
		defer func() { <-d.collecting }()
	case <-ctx.Done():
		return c, context.Cause(ctx)
	}
	freed, bases := d.store().Freed(), d.bases()
	expired, retainErr := d.Retain(ctx, time.Now())
	c.Expired = append(c.Expired, expired...)
	freed = d.store().Freed() - freed
	var err error
	c.Collected, err = d.engine.Collect(ctx, d.needs())
	c.Freed += freed
	// Some went with the last checkpoint over them.
	left := d.bases()
	c.Bases = slices.DeleteFunc(bases, func(id protocol.BaseID) bool { return slices.Contains(left, id) })
	return c, errors.Join(retainErr, err)
}

// bases are the ids of those that are there.
func (d *Daemon) bases() []protocol.BaseID {
	list, _, err := d.store().Bases()
	if err != nil {
		d.log.Warn("list bases", "error", err)
	}
	out := make([]protocol.BaseID, 0, len(list))
	for _, b := range list {
		out = append(out, b.ID)
	}
	return out
}

// needs tells which internal checkpoints are needed. Those of a sandbox that
// runs are its own to remove.
func (d *Daemon) needs() func(checkpoint.Manifest) bool {
	known := map[protocol.SandboxID]map[protocol.CheckpointID]bool{}
	return func(m checkpoint.Manifest) bool {
		s, err := d.Sandbox(string(m.Sandbox))
		if err != nil {
			return false // no sandbox of this host
		}
		if _, _, err := s.running(); err == nil {
			return true
		}
		needed, ok := known[m.Sandbox]
		if !ok {
			if needed, err = sandbox.Needed(s.journal); err != nil {
				return true
			}
			known[m.Sandbox] = needed
		}
		return needed[m.ID]
	}
}
