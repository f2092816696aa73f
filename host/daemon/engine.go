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
	return machine.New(ctx, machine.Options{Driver: d.options.Driver, Dir: d.files.Path, Cache: d.options.Dir.Templates(),
		DiskLimit: d.options.Limits.DiskBytes, Log: d.log})
}

// machines are those of one kind.
func (d *Daemon) machines(ctx context.Context, k Kind, progress func(string)) (*machine.Machines, error) {
	boot, err := d.bootFiles(ctx, progress)
	if err != nil {
		return nil, err
	}
	return d.engine.Kind(machine.Kind{Boot: boot, MemoryBytes: k.MemoryBytes, CPUs: k.CPUs}), nil
}

// deps are the parts that the coordinator works with. The sandbox may start
// from the checkpoint from, though it is another's.
func (s *Sandbox) deps(ctx context.Context, lines *program.Lines, from protocol.CheckpointID) (sandbox.Deps, error) {
	machines, err := s.d.machines(ctx, s.kind.Kind, func(string) {})
	if err != nil {
		return sandbox.Deps{}, err
	}
	var also []protocol.CheckpointID
	if from != "" {
		also = append(also, from)
	}
	return sandbox.Deps{
		Machines: machines, Checkpoints: machines.Checkpoints(s.id, also...), Journal: s.journal, Models: s.d.options.Models, Log: s.d.log,
		Observe: func(e sandbox.Event) { s.observe(lines, e) },
	}, nil
}

func (d *Daemon) store() *checkpoint.Store { return d.engine.Stored() }

func describe(m checkpoint.Manifest) sandbox.Checkpoint { return machine.Describe(m) }
