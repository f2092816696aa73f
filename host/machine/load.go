package machine

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// source is what a machine is loaded from.
type source struct {
	base  *base
	id    protocol.BaseID
	delta *memory.Delta
	state string
	pages *checkpoint.OpenedPages // of delta; nil: none
}

// closePages lets go of what is needed for the load only.
func (e *Engine) closePages(s source) {
	if s.pages == nil {
		return
	}
	if err := s.pages.Close(); err != nil {
		e.log.Warn("close pages", "base", s.id, "error", err)
	}
}

// Load implements sandbox.Machines.
func (m *Machines) Load(ctx context.Context, r sandbox.LoadRequest) (sandbox.VM, error) {
	src, err := m.source(ctx, r)
	if err != nil {
		return nil, err
	}
	v, err := m.start(ctx, r.VM, src)
	m.closePages(src)
	if err != nil {
		m.closeBase(src.id, src.base)
		return nil, err
	}
	return v, nil
}

func (m *Machines) start(ctx context.Context, id protocol.VMID, src source) (*VM, error) {
	rec := m.record(id)
	rec.Base = src.id
	r, err := m.makeRoom(rec)
	if err != nil {
		return nil, err
	}
	vm, err := m.driver.Load(ctx, r.spec(m.kind), vmm.Image{Base: src.base.Base, Delta: src.delta, State: src.state})
	if err != nil {
		return nil, errors.Join(err, r.remove(context.WithoutCancel(ctx)))
	}
	v := &VM{machines: m, room: r, machine: vm, base: src.base, baseID: src.id}
	var mapped memory.Name
	if m.resident {
		mapped, err = memory.NameIn(vm.PID(), src.base.Base)
	}
	if err == nil {
		err = r.complete(vm.Process(), mapped)
	}
	if err == nil {
		if err = vm.Resume(ctx); err != nil {
			err = fmt.Errorf("un-pause loaded machine: %w", err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, v.end())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.vm = v
	return v, nil
}

// source decides what to map and what to copy.
func (e *Engine) source(ctx context.Context, r sandbox.LoadRequest) (source, error) {
	if id, ok := e.templateBase(r.Checkpoint); ok {
		return e.templateSource(id)
	}
	m, src, err := e.open(r.Checkpoint)
	if err != nil {
		return source{}, err
	}
	cost := memory.Cost{DeltaBytes: src.delta.Bytes(), CopyBytes: src.base.DataBytes(), Children: r.Siblings}
	if !r.Rebase && (cost.Choose() == memory.ApplyEach || e.store.Room(cost.CopyBytes+cost.DeltaBytes) != nil) {
		return src, nil
	}
	moved, err := e.derive(ctx, m, src)
	e.closeBase(src.id, src.base)
	e.closePages(src)
	return moved, err
}

// open opens a checkpoint as it is stored at one moment: it may be compacted
// the next, and lie over another base then.
func (e *Engine) open(id protocol.CheckpointID) (checkpoint.Manifest, source, error) {
	files, err := e.store.Files(id)
	if err != nil {
		return checkpoint.Manifest{}, source{}, err
	}
	for {
		m, pages, err := e.store.OpenPages(id)
		if err != nil {
			return m, source{}, err
		}
		b, err := e.openBase(m.Base)
		if err == nil {
			delta := &memory.Delta{Path: files.Pages, Runs: m.Files.Pages.Runs, Open: func() (io.ReadCloser, error) { return io.NopCloser(pages.Reader()), nil }}
			return m, source{base: b, id: m.Base, state: files.State, delta: delta, pages: pages}, nil
		}
		err = errors.Join(err, pages.Close())
		if now, readErr := e.store.Get(id); readErr != nil || now.Base == m.Base {
			return m, source{}, err
		}
	}
}

// derivation is a base made from a checkpoint, once for all who ask.
type derivation struct {
	id   protocol.BaseID
	done chan struct{}
	err  error
}

// derive makes the base that a checkpoint's base with its delta is, or finds
// the one made before. One that was swept since is made again.
func (e *Engine) derive(ctx context.Context, m checkpoint.Manifest, src source) (source, error) {
	for {
		d, mine, err := e.deriveOnce(ctx, m, src)
		if err != nil && !mine && ctx.Err() == nil {
			continue // another operation was at it, and was perhaps cancelled
		}
		if err != nil {
			return source{}, fmt.Errorf("make a base of %s: %w", m.ID, err)
		}
		b, err := e.openBase(d.id)
		if err == nil {
			return source{base: b, id: d.id, state: src.state}, nil
		}
		e.mu.Lock()
		if e.moves[m.ID] == d {
			delete(e.moves, m.ID)
		}
		e.mu.Unlock()
		if protocol.CodeOf(err) != protocol.CodeCheckpointLost || ctx.Err() != nil {
			return source{}, err
		}
	}
}

func (e *Engine) deriveOnce(ctx context.Context, m checkpoint.Manifest, src source) (d *derivation, mine bool, err error) {
	e.mu.Lock()
	d = e.moves[m.ID]
	mine = d == nil
	if mine {
		d = &derivation{id: protocol.NewBaseID(), done: make(chan struct{})}
		e.moves[m.ID] = d
	}
	e.mu.Unlock()
	if mine {
		d.err = e.flatten(ctx, m, src, d.id)
		if d.err != nil {
			e.mu.Lock()
			delete(e.moves, m.ID)
			e.mu.Unlock()
		}
		close(d.done)
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		return nil, mine, context.Cause(ctx)
	}
	return d, mine, d.err
}

func (e *Engine) flatten(ctx context.Context, m checkpoint.Manifest, src source, id protocol.BaseID) error {
	p, err := e.store.BeginBase(id)
	if err != nil {
		return err
	}
	defer p.Discard()
	b, err := memory.Flatten(ctx, src.base.Base, src.delta, id, p.RAMPath())
	if err != nil {
		return err
	}
	if err := b.Close(); err != nil {
		return err
	}
	return p.Publish(ctx, checkpoint.BaseManifest{ID: id, From: checkpoint.Origin{Base: src.id, Checkpoint: m.ID}})
}

// forget lets go of what was made of a checkpoint that is gone.
func (e *Engine) forget(id protocol.CheckpointID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.moves[id]; d != nil {
		select {
		case <-d.done:
			delete(e.moves, id)
		default: // its maker forgets it, or opens it
		}
	}
}
