// Package qemu drives QEMU as package vmm asks.
//
//	d := qemu.New(qemu.Options{Log: log})
//	vm, err := d.Load(ctx, spec, vmm.Image{Base: base, Delta: delta, State: state})
//
// The machine is a q35 with PCI virtio devices: serial ports for the link, an
// entropy source, a read-only disk, and pvpanic. There is no network card, no
// balloon and no display.
//
// # Device state alone
//
// QEMU's migration stream holds RAM as well. xen-save-devices-state writes one
// without; it is loaded by an ordinary incoming migration from a pipe, of a
// machine started with -incoming defer. RAM is mapped once the machine is set
// up, so the delta is applied between that and migrate-incoming.
//
// # Privileges
//
// The process runs as Spec.UID in its own session with QEMU's seccomp filter,
// no_new_privs, no environment and small limits. Everything it uses it gets
// as an open descriptor: it needs no permission on any path of the host, and
// nothing it could do to its directory is followed by the host. RAM images are
// read-only to it: a sealed memory file, or from QEMU 8.2 on the base itself.
//
// The process dies with the process that started it (PR_SET_PDEATHSIG), unless
// it is resident.
//
// # Resident machines
//
// Nothing that a machine uses is another process's: its sockets lie in its
// directory, of which the console drops what is printed while nobody listens,
// and its standard error is a file in memory of a fixed size. Adopt finds the
// process by pid and start time, holds it by a pidfd, compares program and
// user, and asks the kernel whether it is this process that listens on the QMP
// socket. A lock on the directory, which ends with its holder, keeps a machine
// to one host process.
//
// # Concurrency
//
// Each VM has three goroutines, for the process, QMP and the console, which
// end with it. QMP commands of one VM are sent one at a time.
//
// # Failure
//
// A failed start is a *protocol.Error: CodeCheckpointLost when the image is
// damaged, CodeUnavailable when QEMU does not start, CodeNotSupported when
// there is none. The message holds the end of what is kept of QEMU's log.
package qemu
