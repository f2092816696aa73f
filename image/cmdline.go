package image

import "strings"

// cmdline is the kernel's command line with the reason for each word. They are
// there for robustness and small checkpoints; none was chosen for a measured
// gain in boot time.
var cmdline = []string{
	// Console: agentd's own lines, and of the kernel's only warnings and up,
	// since each byte is an exit to the VMM.
	"console=ttyS0", "quiet",

	// A dead guest ends its VMM (-no-reboot), which the host sees at once:
	// panic reboots without waiting, by triple fault rather than by devices.
	"panic=-1", "reboot=t",

	// On a busy host an emulated timer interrupt can come so late that the
	// check would panic the kernel ("IO-APIC + timer doesn't work").
	"no_timer_check",

	// A virtual CPU that waited for its turn, or that was captured and
	// resumed, has not hung.
	"nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1",

	// Without it the first program that asks for random numbers can wait for
	// the entropy of a guest that has no devices. agentd adds the host's.
	"random.trust_cpu=on",

	// A program that touches 4 KiB would have the kernel clear, and so write,
	// 2 MiB, all of which every checkpoint then carries.
	"transparent_hugepage=madvise",

	// No keyboard or mouse; probing the controller waits for both.
	"i8042.noaux", "i8042.nokbd",

	// Nobody reads audit records, which would go to the console instead.
	"audit=0",

	// Not here: mitigations=off (programs of one guest stay protected from each
	// other; under TCG one boot each with QEMU's -icount showed no gain, 3.49
	// against 3.46 s of virtual time), acpi=off (power-off and interrupt routing
	// need it), tsc= and lpj= (right values differ per host, and the kernel
	// finds them itself on q35), noreplace-smp.
}

// Cmdline is the kernel command line of every guest; a driver may append to it.
var Cmdline = strings.Join(cmdline, " ")
