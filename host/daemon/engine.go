package daemon

import (
	"context"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// newEngine opens the machines and checkpoints of all sandboxes.
func (d *Daemon) newEngine(ctx context.Context) (*machine.Engine, error) {
	return nil, nil
}

type shim struct{ *machine.Engine }

func (s shim) Checkpoints(protocol.SandboxID) *machine.Store { return s.Engine.Store() }

// machines are those of one kind.
func (d *Daemon) machines(ctx context.Context, k Kind, progress func(string)) (shim, error) {
	boot, err := d.bootFiles(ctx, progress)
	if err != nil {
		return shim{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.engine == nil {
		d.engine, err = machine.New(ctx, machine.Options{Driver: d.options.Driver, Boot: boot, MemoryBytes: k.MemoryBytes, CPUs: k.CPUs, Dir: d.files.Path, Cache: d.options.Dir.Templates(), Log: d.log})
	}
	return shim{d.engine}, err
}

// deps are the parts that the coordinator works with.
func (s *Sandbox) deps(ctx context.Context, k Kind, lines *program.Lines) (sandbox.Deps, error) {
	machines, err := s.d.machines(ctx, k, func(string) {})
	if err != nil {
		return sandbox.Deps{}, err
	}
	return sandbox.Deps{
		Machines: machines, Checkpoints: machines.Checkpoints(s.id), Journal: s.journal, Models: s.d.options.Models, Log: s.d.log,
		Observe: func(e sandbox.Event) { s.observe(lines, e) },
	}, nil
}

func (d *Daemon) store() *checkpoint.Store { return nil }

func describe(m checkpoint.Manifest) sandbox.Checkpoint { return machine.Describe(m) }
