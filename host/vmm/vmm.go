package vmm

import (
	"context"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// Spec describes a machine. All machines that map one base have the same
// MemoryBytes, CPUs, Kernel, Initrd, Rootfs and Cmdline as the one that made it.
type Spec struct {
	// Dir is the machine's own directory, which exists and nobody else writes
	// to. Its path may be of any length.
	Dir string
	// UID and GID are those of the VMM's process; -1: the caller's. They need
	// no permission on any path named here.
	UID, GID int
	// MemoryBytes is a multiple of 1 MiB.
	MemoryBytes int64
	CPUs        int
	// Kernel and Initrd are what the guest boots from; unused by Load.
	Kernel, Initrd string
	// Rootfs is a raw disk image, never written; empty: no disk. One file
	// serves any number of machines.
	Rootfs string
	// Cmdline is appended to what the driver's devices need (Info.Cmdline).
	Cmdline string
	// Resident: the machine outlives this process, and Adopt takes it over.
	// Others end with it.
	Resident bool
	// Cgroup is the directory of a cgroup (version 2) in which the process
	// starts; empty: the caller's.
	Cgroup string
}

// Process names a machine's process, also to a later host process. A pid
// alone does not: it may be another's by then.
type Process struct {
	PID int
	// StartTime as memory.StartTime gives it: within one boot of the host.
	StartTime uint64
	// Program is the path of the file it runs.
	Program string
}

// Image is what Load starts from.
type Image struct {
	Base *memory.Base
	// Delta is applied over the base; nil: the base alone.
	Delta *memory.Delta
	// State is the path of the device state that SaveState wrote.
	State string
}

// Info names what checkpoints depend on.
type Info struct {
	// Name and Version of the VMM.
	Name, Version string
	// Accel is what runs the guest's instructions: "tcg" or "kvm".
	Accel string
	// CPUModel is the guest's, with the features changed in it.
	CPUModel string
	// Machine names the set of devices and their order; it changes with each
	// release that changes them.
	Machine string
	// Cmdline is what the driver puts first on the guest kernel's command line.
	Cmdline string
}

// Driver starts machines of one kind.
type Driver interface {
	// Info asks the VMM's program about itself. The answer is kept.
	Info(ctx context.Context) (Info, error)
	// Boot starts a machine with its RAM in a file, mapped shared, and lets it
	// run. The file is made if there is none, and belongs to Spec.UID until
	// memory.Protect. For templates only.
	Boot(ctx context.Context, spec Spec, ramFile string) (VM, error)
	// Load starts a machine from an image and returns it paused. The base is
	// mapped privately. The delta is applied before the device state is loaded.
	Load(ctx context.Context, spec Spec, image Image) (VM, error)
	// Adopt takes over a resident machine that an earlier process has loaded
	// with this Spec, as it is: running, or paused in the middle of a capture.
	// os.ErrProcessDone when it has ended or another process has its pid,
	// CodeBusy when a process has it, CodeUnavailable when what is found is
	// not that machine, or does not answer. Those are left as they are.
	Adopt(ctx context.Context, spec Spec, process Process) (VM, error)
}

// VM is one machine, from its start or adoption until its process has ended.
type VM interface {
	// PID and StartTime name the process (memory.Alive).
	PID() int
	StartTime() uint64
	// Process is what a later host process adopts it by.
	Process() Process
	// RAM is where the parts of guest memory lie in the base.
	RAM() []RAMRegion
	// Pause stops the guest's processors and returns when no I/O is under way.
	// Until Resume the owner must not write to, open or close a connection of
	// the Carrier: the VMM would pass it on to the guest's memory.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Paused tells whether the guest's processors are stopped.
	Paused(ctx context.Context) (bool, error)
	// SaveState writes the state of the devices, without memory, to a new file
	// at path. The machine is paused before and after. Not fsynced.
	SaveState(ctx context.Context, path string) error
	// Carrier opens connections to the guest's two ports. One at a time each.
	Carrier() link.Carrier
	// ConsoleTail is the end of what the guest's kernel printed.
	ConsoleTail() []byte
	// Done is closed when the process has ended and, if it is this process's
	// child, was reaped.
	Done() <-chan struct{}
	// Err is nil until Done, then an *EndError.
	Err() error
	// Kill ends the process, waits until it is reaped and removes what the
	// driver put into Spec.Dir. Idempotent. ctx bounds the wait.
	Kill(ctx context.Context) error
	// Detach lets go of a resident machine, which goes on and can be adopted.
	// Nothing else may be called at the same time or afterwards, and Done is
	// not closed any more.
	Detach() error
}

// RAMRegion is a part of guest memory.
type RAMRegion struct {
	// GuestAddress is physical, Offset in the base; in bytes.
	GuestAddress, Offset, Length int64
}
