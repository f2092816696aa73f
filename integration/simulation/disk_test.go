package simulation_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// disk holds checkpoints.
type disk struct {
	world *world

	mu    sync.Mutex // guards what follows
	files map[protocol.CheckpointID]*stored
	order []protocol.CheckpointID // published ones, oldest first
	temps map[protocol.CheckpointID]*stored
}

// stored is a checkpoint, or what may become one.
type stored struct {
	meta  sandbox.Checkpoint
	guest *image
	step  int // when it was captured
	lost  bool
}

func newDisk(w *world) *disk {
	return &disk{world: w, files: map[protocol.CheckpointID]*stored{}, temps: map[protocol.CheckpointID]*stored{}}
}

// published is a whole checkpoint, nil if there is none of that name.
func (d *disk) published(id protocol.CheckpointID) *stored {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.files[id]; s != nil && !s.lost {
		return s
	}
	return nil
}

// crash loses some of what is not durable.
func (d *disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range d.order {
		if s := d.files[id]; !s.meta.Durable && d.world.chance(2) {
			s.lost = true
		}
	}
}

// checkpoints is the disk as one daemon sees it.
type checkpoints struct{ host *daemon }

var _ sandbox.Checkpoints = checkpoints{}

func (c checkpoints) disk() *disk { return c.host.world.disk }

type capture struct {
	checkpoints
	s *stored
}

func (c checkpoints) Capture(ctx context.Context, m sandbox.VM, want sandbox.Checkpoint) (sandbox.Capture, error) {
	v := m.(*machine).vm
	s := &stored{meta: want}
	err := c.host.do(ctx, &parked{label: "capture", vm: v, faults: []fault{full}, effect: func(f fault) error {
		switch {
		case f == full:
			return syscall.ENOSPC
		case v.dead:
			return v.err
		case !v.paused:
			c.host.world.fail("capture of %v, which is not paused", v)
		}
		s.guest, s.step = v.guest.image(), c.host.world.steps
		v.guest.captured = true
		s.meta.Bytes = captureBytes
		c.disk().temps[want.ID] = s
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return &capture{c, s}, nil
}

// captureBytes is what a capture is said to have copied.
const captureBytes = 20 << 20

func (c *capture) Bytes() int64 { return captureBytes }

func (c *capture) Publish(ctx context.Context) (sandbox.Checkpoint, error) {
	err := c.host.do(ctx, &parked{label: "publish", id: string(c.s.meta.ID), faults: []fault{full}, effect: func(f fault) error {
		if f == full {
			return syscall.ENOSPC
		}
		d := c.disk()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.temps, c.s.meta.ID)
		d.files[c.s.meta.ID] = c.s
		d.order = append(d.order, c.s.meta.ID)
		return nil
	}})
	return c.s.meta, err
}

func (c *capture) Discard() {
	w := c.host.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if !c.host.dead {
		c.disk().mu.Lock()
		defer c.disk().mu.Unlock()
		delete(c.disk().temps, c.s.meta.ID)
	}
}

func (c checkpoints) Durable(ctx context.Context, id protocol.CheckpointID) error {
	return c.host.do(ctx, &parked{label: "durable", id: string(id), faults: []fault{full}, effect: func(f fault) error {
		if f == full {
			return syscall.ENOSPC
		}
		s := c.disk().published(id)
		if s == nil {
			return protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s", id)
		}
		c.disk().mu.Lock()
		defer c.disk().mu.Unlock()
		s.meta.Durable = true
		return nil
	}})
}

func (c checkpoints) dead() bool {
	w := c.host.world
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.host.dead
}

func (c checkpoints) Get(_ context.Context, id protocol.CheckpointID) (sandbox.Checkpoint, error) {
	if c.dead() {
		return sandbox.Checkpoint{}, errKilled
	}
	d := c.disk()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch s := d.files[id]; {
	case s == nil:
		return sandbox.Checkpoint{}, protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s", id)
	case s.lost:
		return sandbox.Checkpoint{}, protocol.Errorf(protocol.CodeCheckpointLost, "checkpoint %s was lost", id)
	default:
		return s.meta, nil
	}
}

func (c checkpoints) Check(ctx context.Context, id protocol.CheckpointID) error {
	_, err := c.Get(ctx, id)
	return err
}

func (c checkpoints) SetClass(ctx context.Context, id protocol.CheckpointID, class sandbox.Class) error {
	return c.host.do(ctx, &parked{label: "set-class", id: string(id), effect: func(fault) error {
		s := c.disk().published(id)
		if s == nil {
			return protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s", id)
		}
		c.disk().mu.Lock()
		defer c.disk().mu.Unlock()
		s.meta.Class = class
		return nil
	}})
}

func (c checkpoints) Remove(ctx context.Context, id protocol.CheckpointID) error {
	return c.host.do(ctx, &parked{label: "remove", id: string(id), effect: func(fault) error {
		c.host.world.rules.removed(id)
		d := c.disk()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.files[id] == nil {
			return protocol.Errorf(protocol.CodeUnknownCheckpoint, "no checkpoint %s", id)
		}
		delete(d.files, id)
		d.order = slices.DeleteFunc(d.order, func(x protocol.CheckpointID) bool { return x == id })
		return nil
	}})
}

func (c checkpoints) List(context.Context) ([]sandbox.Checkpoint, error) {
	if c.dead() {
		return nil, errKilled
	}
	d := c.disk()
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []sandbox.Checkpoint
	for _, id := range d.order {
		if s := d.files[id]; !s.lost && s.meta.Sandbox == c.host.world.plan.id {
			out = append(out, s.meta)
		}
	}
	return out, nil
}

func (c checkpoints) Sweep(ctx context.Context) error {
	return c.host.do(ctx, &parked{label: "sweep-disk", effect: func(fault) error {
		d := c.disk()
		d.mu.Lock()
		defer d.mu.Unlock()
		clear(d.temps)
		for _, id := range slices.Sorted(maps.Keys(d.files)) {
			if d.files[id].lost {
				// It stays known as lost; what was captured is gone.
				d.files[id].guest = nil
			}
		}
		return nil
	}})
}

func (c checkpoints) Room(ctx context.Context) error {
	return c.host.do(ctx, &parked{label: "room", faults: []fault{full}, effect: func(f fault) error {
		if f == full {
			return protocol.Errorf(protocol.CodeDiskFull, "the disk is full")
		}
		return nil
	}})
}

// template puts a booted, quiesced guest on the disk.
func (d *disk) template(id protocol.CheckpointID) {
	g := bootTemplate(d.world)
	d.files[id] = &stored{guest: g, meta: sandbox.Checkpoint{ID: id, Class: sandbox.ClassNamed, Created: time.Now(), Freeze: 1, Durable: true}}
	d.order = append(d.order, id)
}
