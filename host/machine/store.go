package machine

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// captureRoom is the least free space with which a capture is begun.
const captureRoom = 64 << 20

// Store is the engine's checkpoints as the coordinator sees them.
type Store struct{ e *Engine }

// Store returns the checkpoints.
func (e *Engine) Store() *Store { return &Store{e} }

// capture is a sandbox.Capture.
type capture struct {
	e        *Engine
	pending  *checkpoint.Pending
	manifest checkpoint.Manifest
	bytes    int64
}

// Capture implements sandbox.Checkpoints.
func (s *Store) Capture(ctx context.Context, vm sandbox.VM, want sandbox.Checkpoint) (sandbox.Capture, error) {
	v := vm.(*VM)
	p, err := s.e.store.Begin(want.ID)
	if err != nil {
		return nil, err
	}
	c := &capture{e: s.e, pending: p, manifest: s.e.manifest(want, v)}
	// Both at once: a VMM saves the state of a stopped machine without a change
	// of its memory, which its own migration has sent before that.
	var delta *memory.Delta
	var both errgroup.Group
	both.Go(func() error {
		if err := v.machine.SaveState(ctx, p.StatePath()); err != nil {
			return fmt.Errorf("save device state: %w", err)
		}
		return nil
	})
	both.Go(func() (err error) {
		if delta, err = memory.CreateDelta(ctx, v.PID(), v.base.Base, p.PagesPath()); err != nil {
			return fmt.Errorf("copy memory: %w", err)
		}
		return nil
	})
	if err := both.Wait(); err != nil {
		p.Discard()
		return nil, err
	}
	c.manifest.Files.Pages.Runs = delta.Runs
	for _, r := range delta.Runs {
		c.bytes += r.Length
	}
	return c, nil
}

func (e *Engine) manifest(c sandbox.Checkpoint, v *VM) checkpoint.Manifest {
	return checkpoint.Manifest{ID: c.ID, Class: checkpoint.Class(c.Class), Label: c.Label, Created: c.Created,
		Sandbox: c.Sandbox, Timeline: c.Timeline, Line: c.Line, Node: c.Node, Parent: e.parent(c.Parent), Key: c.Key, Kind: c.Kind, Freeze: c.Freeze,
		DurableWanted: c.DurableWanted, Position: c.Position, Execs: c.Execs, VMM: e.vmmOf(),
		Machine: checkpoint.Machine{MemoryBytes: e.memory, CPUs: e.cpus}, KernelDigest: e.boot.KernelDigest, InitrdDigest: e.boot.InitrdDigest,
		ImageDigest: e.boot.RootfsDigest, ProtocolVersion: protocol.Version, Base: v.baseID}
}

// parent leaves out a template, which is no checkpoint.
func (e *Engine) parent(id protocol.CheckpointID) protocol.CheckpointID {
	if _, ok := e.templateBase(id); ok {
		return ""
	}
	return id
}

// Bytes implements sandbox.Capture.
func (c *capture) Bytes() int64 { return c.bytes }

// Publish implements sandbox.Capture.
func (c *capture) Publish(ctx context.Context) (sandbox.Checkpoint, error) {
	if err := c.pending.Publish(ctx, c.manifest); err != nil {
		return sandbox.Checkpoint{}, err
	}
	m, err := c.e.store.Get(c.manifest.ID)
	if err != nil { // an operation that fails leaves no checkpoint
		return sandbox.Checkpoint{}, errors.Join(err, c.e.store.Remove(c.manifest.ID))
	}
	return fromManifest(m), nil
}

// Discard implements sandbox.Capture.
func (c *capture) Discard() { c.pending.Discard() }

func fromManifest(m checkpoint.Manifest) sandbox.Checkpoint {
	return sandbox.Checkpoint{ID: m.ID, Class: sandbox.Class(m.Class), Label: m.Label, Created: m.Created, Sandbox: m.Sandbox, Timeline: m.Timeline,
		Line: m.Line, Node: m.Node, Parent: m.Parent, Freeze: m.Freeze, Key: m.Key, Kind: m.Kind, DurableWanted: m.DurableWanted, Durable: m.Durable,
		Position: m.Position, Execs: m.Execs, Bytes: m.Bytes()}
}

// Durable implements sandbox.Checkpoints.
func (s *Store) Durable(ctx context.Context, id protocol.CheckpointID) error {
	return s.e.store.MakeDurable(ctx, id)
}

// Get implements sandbox.Checkpoints.
func (s *Store) Get(_ context.Context, id protocol.CheckpointID) (sandbox.Checkpoint, error) {
	if base, ok := s.e.templateBase(id); ok {
		return s.e.templateCheckpoint(base)
	}
	m, err := s.e.store.Get(id)
	if err != nil {
		return sandbox.Checkpoint{}, err
	}
	if err := m.Compatible(s.e.platform()); err != nil {
		return sandbox.Checkpoint{}, err
	}
	return fromManifest(m), nil
}

// Check implements sandbox.Checkpoints.
func (s *Store) Check(ctx context.Context, id protocol.CheckpointID) error {
	return s.e.store.Check(ctx, id)
}

// SetClass implements sandbox.Checkpoints.
func (s *Store) SetClass(_ context.Context, id protocol.CheckpointID, c sandbox.Class) error {
	return s.e.store.SetClass(id, checkpoint.Class(c))
}

// Remove implements sandbox.Checkpoints.
func (s *Store) Remove(_ context.Context, id protocol.CheckpointID) error {
	if err := s.e.store.Remove(id); err != nil {
		return err
	}
	return s.sweepBases()
}

// sweepBases drops the bases that were made from checkpoints and serve nobody.
func (s *Store) sweepBases() error {
	_, err := s.e.store.SweepBases(func(m checkpoint.BaseManifest) bool { return m.From.Template != "" })
	return err
}

// List implements sandbox.Checkpoints.
func (s *Store) List(context.Context) ([]sandbox.Checkpoint, error) {
	list, damaged, err := s.e.store.List()
	for _, d := range damaged {
		s.e.log.Warn("damaged checkpoint", "checkpoint", d.ID, "error", d.Err)
	}
	out := make([]sandbox.Checkpoint, 0, len(list))
	for _, m := range list {
		out = append(out, fromManifest(m))
	}
	return out, err
}

// Sweep implements sandbox.Checkpoints.
func (s *Store) Sweep(ctx context.Context) error {
	if _, err := s.e.store.Recover(ctx); err != nil {
		return err
	}
	if _, err := s.e.store.Sweep(nil); err != nil {
		return err
	}
	return s.sweepBases()
}

// Room implements sandbox.Checkpoints.
func (s *Store) Room(context.Context) error { return s.e.store.Room(captureRoom) }
