package machine

import (
	"context"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// killWait bounds the wait for a killed process.
const killWait = 30 * time.Second

// VM is one machine that was loaded or adopted.
type VM struct {
	machines *Machines
	room     *room
	machine  vmm.VM
	base     *base
	baseID   protocol.BaseID
	forget   func() // the name under which it maps the base; nil: the base's own

	closing sync.Once
}

var _ sandbox.VM = (*VM)(nil)

// ID implements sandbox.VM.
func (v *VM) ID() protocol.VMID { return v.room.id }

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

// Paused tells whether its processors are stopped, as those of an adopted one
// are that was being captured.
func (v *VM) Paused(ctx context.Context) (bool, error) { return v.machine.Paused(ctx) }

// Kill implements sandbox.VM.
func (v *VM) Kill() error {
	err := v.end()
	v.release()
	return err
}

func (v *VM) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	if err := v.machine.Kill(ctx); err != nil {
		return err // what it has must stay as long as it may live
	}
	return v.room.remove(ctx)
}

// release gives the base back.
func (v *VM) release() {
	v.closing.Do(func() {
		if v.forget != nil {
			v.forget()
		}
		v.machines.closeBase(v.baseID, v.base)
	})
}
