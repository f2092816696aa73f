package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// captureRoom is the least free space with which a capture is begun.
const captureRoom = 64 << 20

// Store is the checkpoints of one sandbox as its coordinator sees them.
type Store struct {
	m       *Machines
	sandbox protocol.SandboxID
	also    []protocol.CheckpointID
}

var (
	_ sandbox.Checkpoints = (*Store)(nil)
	_ sandbox.DiskUser    = (*Store)(nil)
)

// Checkpoints returns the checkpoints of one sandbox, with the templates, and
// those of other sandboxes from which it may start.
func (m *Machines) Checkpoints(id protocol.SandboxID, also ...protocol.CheckpointID) *Store {
	return &Store{m, id, also}
}

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
	p, err := s.m.store.Begin(want.ID)
	if err != nil {
		return nil, err
	}
	c := &capture{e: s.m.Engine, pending: p, manifest: v.machines.manifest(want, v)}
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

func (m *Machines) manifest(c sandbox.Checkpoint, v *VM) checkpoint.Manifest {
	b := m.kind.Boot
	return checkpoint.Manifest{ID: c.ID, Class: checkpoint.Class(c.Class), Label: c.Label, Created: c.Created,
		Sandbox: c.Sandbox, Timeline: c.Timeline, Line: c.Line, Node: c.Node, Parent: m.parent(c.Parent), Key: c.Key, Kind: c.Kind, Freeze: c.Freeze,
		DurableWanted: c.DurableWanted, Position: c.Position, Execs: c.Execs, VMM: m.vmmOf(),
		Machine: m.shape(), KernelDigest: b.KernelDigest, InitrdDigest: b.InitrdDigest,
		ImageDigest: b.RootfsDigest, ProtocolVersion: protocol.Version, Base: v.baseID}
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
	if err := s.own(id); err != nil {
		return err
	}
	return s.m.store.MakeDurable(ctx, id)
}

// Get implements sandbox.Checkpoints.
func (s *Store) Get(_ context.Context, id protocol.CheckpointID) (sandbox.Checkpoint, error) {
	if base, ok := s.m.templateBase(id); ok {
		return s.m.templateCheckpoint(base)
	}
	m, err := s.m.store.Get(id)
	if err != nil {
		return sandbox.Checkpoint{}, err
	}
	if m.Sandbox != s.sandbox && !slices.Contains(s.also, id) {
		return sandbox.Checkpoint{}, unknown(id)
	}
	if err := m.Compatible(s.m.platform()); err != nil {
		return sandbox.Checkpoint{}, err
	}
	return fromManifest(m), nil
}

// own refuses the checkpoints of other sandboxes. What cannot be read is
// nobody's, and left to the store to judge.
func (s *Store) own(id protocol.CheckpointID) error {
	if m, err := s.m.store.Get(id); err == nil && m.Sandbox != s.sandbox {
		return unknown(id)
	}
	return nil
}

func unknown(id protocol.CheckpointID) error {
	return protocol.Errorf(protocol.CodeUnknownCheckpoint, "checkpoint %s does not exist", id)
}

// Check implements sandbox.Checkpoints.
func (s *Store) Check(ctx context.Context, id protocol.CheckpointID) error {
	if !slices.Contains(s.also, id) {
		if err := s.own(id); err != nil {
			return err
		}
	}
	return s.m.store.Check(ctx, id)
}

// SetClass implements sandbox.Checkpoints.
func (s *Store) SetClass(_ context.Context, id protocol.CheckpointID, c sandbox.Class) error {
	if err := s.own(id); err != nil {
		return err
	}
	return s.m.store.SetClass(id, checkpoint.Class(c))
}

// Remove implements sandbox.Checkpoints.
func (s *Store) Remove(_ context.Context, id protocol.CheckpointID) error {
	if err := s.own(id); err != nil {
		return err
	}
	return s.m.Remove(id)
}

// Remove removes a checkpoint of any sandbox, and the bases and frames that
// served it only.
func (e *Engine) Remove(id protocol.CheckpointID) error {
	if err := e.store.Remove(id); err != nil {
		return err
	}
	e.forget(id)
	_, err := e.store.SweepObjects()
	return errors.Join(err, e.SweepBases())
}

// List implements sandbox.Checkpoints.
func (s *Store) List(ctx context.Context) ([]sandbox.Checkpoint, error) {
	all, err := s.m.List(ctx)
	return slices.DeleteFunc(all, func(c sandbox.Checkpoint) bool { return c.Sandbox != s.sandbox }), err
}

// Sweep implements sandbox.Checkpoints. What never became a checkpoint is
// removed once for all sandboxes.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.m.Recover(ctx); err != nil {
		return err
	}
	return s.m.SweepBases()
}

// DiskUsed implements sandbox.DiskUser: the files of the sandbox's checkpoints,
// and the bases that serve it only.
func (s *Store) DiskUsed(context.Context) (int64, error) {
	t, err := s.m.store.Tree(s.sandbox)
	return t.Own, err
}

// Room implements sandbox.Checkpoints.
func (s *Store) Room(context.Context) error { return s.m.store.Room(captureRoom) }

// List is the checkpoints of all sandboxes, oldest first.
func (e *Engine) List(context.Context) ([]sandbox.Checkpoint, error) {
	list, damaged, err := e.store.List()
	for _, d := range damaged {
		e.log.Warn("damaged checkpoint", "checkpoint", d.ID, "error", d.Err)
	}
	out := make([]sandbox.Checkpoint, 0, len(list))
	for _, m := range list {
		out = append(out, fromManifest(m))
	}
	return out, err
}

// Stored is the store that all sandboxes share, for those who list and remove.
func (e *Engine) Stored() *checkpoint.Store { return e.store }
