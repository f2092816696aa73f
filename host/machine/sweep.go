package machine

import (
	"context"
	"errors"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/sandbox"
)

// Recover removes what an earlier process has left unfinished, and holds what
// a boot of the host may have damaged to its checksums. It happens once, before
// the first sandbox is recovered; later calls do nothing.
func (e *Engine) Recover(ctx context.Context) error {
	e.recovering.Lock()
	defer e.recovering.Unlock()
	if e.recovered {
		return nil
	}
	if _, err := e.store.Recover(ctx); err != nil {
		return err
	}
	if _, err := e.store.Sweep(nil); err != nil {
		return err
	}
	// Machines that became templates have no other record, and those without
	// one have not begun.
	err := e.clearRooms(ctx, func(r *room) bool { return r.record.ID == "" || r.record.Template })
	e.recovered = err == nil
	return err
}

// SweepAll ends and removes every machine that this process has neither made
// nor adopted, and the bases and frames that serve nobody then: once all
// sandboxes are recovered.
func (e *Engine) SweepAll(ctx context.Context) error {
	_, err := e.store.SweepObjects()
	return errors.Join(e.clearRooms(ctx, func(*room) bool { return true }), e.SweepBases(), err)
}

// clearRooms clears the rooms of earlier processes that are meant.
func (e *Engine) clearRooms(ctx context.Context, meant func(*room) bool) error {
	e.mu.Lock()
	var rooms []*room
	for _, r := range e.rooms {
		if !r.ours && meant(r) {
			rooms = append(rooms, r)
		}
	}
	e.mu.Unlock()
	var errs []error
	for _, r := range rooms {
		errs = append(errs, r.clear(ctx))
	}
	return errors.Join(errs...)
}

// SweepBases drops the bases that were made from checkpoints and serve nobody.
// A machine's base serves it also before the machine is adopted.
func (e *Engine) SweepBases() error {
	mapped := e.mapped()
	_, err := e.store.SweepBases(func(m checkpoint.BaseManifest) bool { return m.From.Template != "" || mapped[m.ID] })
	return err
}

// Sweep implements sandbox.Machines.
func (e *Engine) Sweep(ctx context.Context, r sandbox.VMRecord) error {
	e.mu.Lock()
	found, vm := e.rooms[r.ID], (*VM)(nil)
	if found != nil {
		vm = found.vm
	}
	e.mu.Unlock()
	switch {
	case found == nil:
		return nil // nothing of it was ever made, or all is gone
	case vm != nil:
		return vm.Kill()
	}
	return found.clear(ctx)
}
