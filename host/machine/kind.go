package machine

import (
	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Boot names the files a guest boots from, with their digests.
type Boot struct {
	Kernel, KernelDigest string
	Initrd, InitrdDigest string
	Rootfs, RootfsDigest string
	Cmdline              string
}

// Kind is what all machines of a sandbox have in common.
type Kind struct {
	Boot        Boot
	MemoryBytes int64
	CPUs        int // default 1
}

// Machines makes machines of one kind.
type Machines struct {
	*Engine
	kind Kind
}

var _ sandbox.Machines = (*Machines)(nil)

// Kind returns the maker of such machines. It costs nothing; any number may
// be made of one kind.
func (e *Engine) Kind(k Kind) *Machines {
	k.CPUs = max(1, k.CPUs)
	return &Machines{e, k}
}

// platform is what a checkpoint must fit.
func (m *Machines) platform() checkpoint.Platform {
	return checkpoint.Platform{VMM: m.vmmOf(), Machine: m.shape(), KernelDigest: m.kind.Boot.KernelDigest,
		ImageDigest: m.kind.Boot.RootfsDigest, ProtocolVersion: protocol.Version}
}

func (m *Machines) shape() checkpoint.Machine {
	return checkpoint.Machine{MemoryBytes: m.kind.MemoryBytes, CPUs: m.kind.CPUs}
}

func (e *Engine) vmmOf() checkpoint.VMM {
	return checkpoint.VMM{Name: e.info.Name, Version: e.info.Version, CPUModel: e.info.CPUModel + " " + e.info.Machine, Accel: e.info.Accel}
}

// record begins the record of a machine of this kind.
func (m *Machines) record(id protocol.VMID) record {
	return record{ID: id, MemoryBytes: m.kind.MemoryBytes, CPUs: m.kind.CPUs}
}
