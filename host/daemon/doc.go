// Package daemon is the long-lived host: many sandboxes in one directory, over
// restarts of its process.
//
//	d, err := daemon.Open(ctx, daemon.Options{Dir: dir, Driver: qemu.New(qemu.Options{}), Boot: boot})
//	sb, err := d.Create(ctx, daemon.Request{MemoryBytes: 256 << 20})
//	id, err := sb.Exec(ctx, daemon.Command{Spec: protocol.ExecSpec{Argv: []string{"true"}}})
//	...
//	err = d.Close()
//
// The rules of one sandbox are host/sandbox's; this package finds sandboxes by
// id or name, keeps the output of their programs (host/spool), tells what
// happens to them as events, and takes all of them over from the process
// before. It speaks no protocol: host/admin does, and calls this package.
//
// # Concurrency
//
// Everything is safe for concurrent use. What starts or ends the machines of a
// sandbox as a whole takes its turn; Daemon.mu and Sandbox.mu guard maps and
// are never held across I/O.
//
// # Failure
//
// The journal says what exists. A sandbox that cannot be recovered stays
// listed with the reason and hinders no other. The output of programs is kept
// as far as the disk allows; a full one never stops a program.
package daemon
