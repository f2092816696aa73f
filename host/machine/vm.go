package machine

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// killWait bounds the wait for a killed process.
const killWait = 30 * time.Second

// VM is one loaded machine.
type VM struct {
	machines *Machines
	id       protocol.VMID
	dir      string
	machine  vmm.VM
	base     *base
	baseID   protocol.BaseID

	closing sync.Once
}

var _ sandbox.VM = (*VM)(nil)

// ID implements sandbox.VM.
func (v *VM) ID() protocol.VMID { return v.id }

// PID implements sandbox.VM.
func (v *VM) PID() int { return v.machine.PID() }

// StartTime implements sandbox.VM.
func (v *VM) StartTime() uint64 { return v.machine.StartTime() }

// Connect implements sandbox.VM.
func (v *VM) Connect(ctx context.Context) (sandbox.Link, error) {
	l, err := link.Connect(ctx, v.machine.Carrier(), link.Options{Log: v.machines.log})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Pause implements sandbox.VM.
func (v *VM) Pause(ctx context.Context) error { return v.machine.Pause(ctx) }

// Resume implements sandbox.VM.
func (v *VM) Resume(ctx context.Context) error { return v.machine.Resume(ctx) }

// Done implements sandbox.VM.
func (v *VM) Done() <-chan struct{} { return v.machine.Done() }

// Err implements sandbox.VM.
func (v *VM) Err() error { return v.machine.Err() }

// Console is the end of what the guest's kernel printed.
func (v *VM) Console() []byte { return v.machine.ConsoleTail() }

// Kill implements sandbox.VM.
func (v *VM) Kill() error {
	err := v.end()
	v.closing.Do(func() { v.machines.closeBase(v.baseID, v.base) })
	return err
}

func (v *VM) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	return errors.Join(v.machine.Kill(ctx), os.RemoveAll(v.dir))
}
