package checkpoint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// Platform is what a host would load a checkpoint with.
type Platform struct {
	VMM             VMM
	Machine         Machine
	KernelDigest    string
	ImageDigest     string
	ProtocolVersion int
}

// Compatible tells whether the memory of a checkpoint can be used on a
// platform. If not, CodeCheckpointRefused names everything that differs, in
// the message and as "differs" in the details; the workspace at m.Position
// can still be used. (A newer format of the manifest is refused with the same
// code by Get.) The initramfs and the release may differ: what the guest
// needs of them is in its memory, and the protocol version covers the talk
// with it.
func (m Manifest) Compatible(have Platform) error {
	var differs []string
	var text []string
	compare := func(what, checkpoint, host string) {
		if checkpoint != host {
			differs = append(differs, what)
			text = append(text, fmt.Sprintf("%s is %q, here %q", what, checkpoint, host))
		}
	}
	compare("VMM", m.VMM.Name, have.VMM.Name)
	compare("VMM version", m.VMM.Version, have.VMM.Version)
	compare("CPU model", m.VMM.CPUModel, have.VMM.CPUModel)
	compare("accelerator", m.VMM.Accel, have.VMM.Accel)
	compare("kernel", m.KernelDigest, have.KernelDigest)
	compare("image", m.ImageDigest, have.ImageDigest)
	compare("protocol", strconv.Itoa(m.ProtocolVersion), strconv.Itoa(have.ProtocolVersion))
	compare("memory size", strconv.FormatInt(m.Machine.MemoryBytes, 10), strconv.FormatInt(have.Machine.MemoryBytes, 10))
	compare("CPUs", strconv.Itoa(m.Machine.CPUs), strconv.Itoa(have.Machine.CPUs))
	if len(differs) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.CodeCheckpointRefused, "%s was made elsewhere: %s", checkpointName(m.ID), strings.Join(text, "; ")).
		With("differs", differs)
}
