package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
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
	e.recovered = true
	return nil
}

// sweepBases drops the bases that were made from checkpoints and serve nobody.
func (e *Engine) sweepBases() error {
	_, err := e.store.SweepBases(func(m checkpoint.BaseManifest) bool { return m.From.Template != "" })
	return err
}

// Adopt implements sandbox.Machines. Machines of this engine end with its
// process, so there is never one to adopt.
func (m *Machines) Adopt(context.Context, sandbox.VMRecord) (sandbox.VM, error) { return nil, nil }

// Sweep implements sandbox.Machines.
func (e *Engine) Sweep(ctx context.Context, r sandbox.VMRecord) error {
	if r.PID > 0 && memory.Alive(r.PID, r.StartTime) {
		if err := killAndWait(ctx, r.PID, r.StartTime); err != nil {
			return err
		}
	}
	return os.RemoveAll(e.vmDir(r.ID))
}

// SweepAll removes the directories of machines that have no record, as a
// template's. Their processes ended with the host process that made them.
func (e *Engine) SweepAll(context.Context) error {
	dirs, err := filepath.Glob(filepath.Join(e.dir, "vm", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dirs {
		errs = append(errs, os.RemoveAll(d))
	}
	return errors.Join(errs...)
}
