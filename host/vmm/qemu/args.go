package qemu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// machine is all that makes up a command line. Numbers that name descriptors
// are the child's.
type machine struct {
	accel, cpu     string
	translationMiB int
	cpus           int
	memory         int64

	ram         int // file of the guest's RAM
	ramShared   bool
	ramReadOnly bool // QEMU opens it read-only (8.2)

	qmp, control, bulk, console int // listening sockets

	rootfs int // -1: none

	boot *bootFiles // nil: wait for device state
}

type bootFiles struct {
	kernel, initrd int // initrd -1: none
	cmdline        string
}

// pair is one name=value of an option.
type pair struct{ name, value string }

// option joins pairs as QEMU parses them: commas in values are doubled.
func option(kind string, pairs ...pair) string {
	var b strings.Builder
	b.WriteString(kind)
	for _, p := range pairs {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(p.name + "=" + strings.ReplaceAll(p.value, ",", ",,"))
	}
	return b.String()
}

func on(v bool) string {
	if v {
		return "on"
	}
	return "off"
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func socket(id string, fd int) string {
	return option("socket", pair{"id", id}, pair{"fd", strconv.Itoa(fd)}, pair{"server", "on"}, pair{"wait", "off"})
}

// rootfsSet is a descriptor set (-add-fd): a file that QEMU may open by
// /dev/fdset/N, with no permission on the file itself.
const rootfsSet = 1

func fdset(set, fd int) string {
	return option("", pair{"fd", strconv.Itoa(fd)}, pair{"set", strconv.Itoa(set)})
}

// args builds the command line without the program's name.
func (m *machine) args() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-accel", m.accelerator(),
		"-machine", option("q35",
			pair{"memory-backend", "ram"}, pair{"suppress-vmdesc", "on"},
			pair{"mem-merge", "off"}, pair{"dump-guest-core", "off"},
			pair{"usb", "off"}, pair{"vmport", "off"}, pair{"smm", "off"},
			pair{"sata", "off"}, pair{"smbus", "off"}, pair{"i8042", "off"}),
		"-global", "migration.send-configuration=off",
		"-cpu", m.cpu,
		"-smp", option("", pair{"cpus", strconv.Itoa(m.cpus)}, pair{"sockets", "1"}, pair{"cores", strconv.Itoa(m.cpus)}, pair{"threads", "1"}),
		"-m", option("", pair{"size", strconv.FormatInt(m.memory>>20, 10) + "M"}),
		"-object", m.memoryBackend(),
		// While nobody is connected what the guest prints is lost, and the guest
		// does not wait.
		"-chardev", socket("console", m.console),
		"-serial", "chardev:console",
		"-chardev", socket("qmp", m.qmp),
		"-mon", option("", pair{"chardev", "qmp"}, pair{"mode", "control"}),
		"-device", "pvpanic-pci",
		"-object", "rng-builtin,id=rng",
		"-device", "virtio-rng-pci,rng=rng",
		"-device", "virtio-serial-pci,id=serial,max_ports=4",
		"-chardev", socket("control", m.control),
		"-device", option("virtserialport", pair{"bus", "serial.0"}, pair{"nr", "1"}, pair{"chardev", "control"}, pair{"name", protocol.SerialControl}),
		"-chardev", socket("bulk", m.bulk),
		"-device", option("virtserialport", pair{"bus", "serial.0"}, pair{"nr", "2"}, pair{"chardev", "bulk"}, pair{"name", protocol.SerialBulk}),
	}
	if m.rootfs >= 0 {
		args = append(args,
			"-add-fd", fdset(rootfsSet, m.rootfs),
			// Locks would be between machines that share one read-only file.
			"-blockdev", option("", pair{"driver", "raw"}, pair{"node-name", "root"}, pair{"read-only", "on"},
				pair{"file.driver", "file"}, pair{"file.filename", fmt.Sprintf("/dev/fdset/%d", rootfsSet)}, pair{"file.locking", "off"}),
			"-device", "virtio-blk-pci,drive=root")
	}
	if m.boot == nil {
		return append(args, "-S", "-incoming", "defer")
	}
	args = append(args, "-kernel", fdPath(m.boot.kernel), "-append", m.boot.cmdline)
	if m.boot.initrd >= 0 {
		args = append(args, "-initrd", fdPath(m.boot.initrd))
	}
	return args
}

func (m *machine) accelerator() string {
	if m.accel != "tcg" {
		return m.accel
	}
	return option("tcg", pair{"thread", "multi"}, pair{"tb-size", strconv.Itoa(m.translationMiB)})
}

func (m *machine) memoryBackend() string {
	pairs := []pair{
		{"id", "ram"}, {"size", strconv.FormatInt(m.memory, 10)}, {"mem-path", fdPath(m.ram)},
		{"share", on(m.ramShared)}, {"merge", "off"}, {"dump", "off"},
	}
	if m.ramReadOnly {
		pairs = append(pairs, pair{"readonly", "on"}, pair{"rom", "off"})
	}
	return option("memory-backend-file", pairs...)
}

// ramRegions is where QEMU's q35 puts memory: below 4 GiB it ends at 2.75 GiB,
// or at 2 GiB when there is more than that (pc_q35_init).
func ramRegions(size int64) []vmm.RAMRegion {
	const lowMax, lowSplit, high = 0xb0000000, 0x80000000, 1 << 32
	if size < lowMax {
		return []vmm.RAMRegion{{Length: size}}
	}
	return []vmm.RAMRegion{{Length: lowSplit}, {GuestAddress: high, Offset: lowSplit, Length: size - lowSplit}}
}
