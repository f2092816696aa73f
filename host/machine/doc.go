// Package machine makes real machines for host/sandbox: it joins a VMM
// driver, guest RAM, the checkpoint store and the template cache behind the
// coordinator's interfaces.
//
//	engine, err := machine.New(ctx, machine.Options{Driver: qemu.New(...), Dir: runDir, Cache: cacheDir})
//	machines := engine.Kind(machine.Kind{Boot: boot, MemoryBytes: 256 << 20})
//	template, err := machines.Template(ctx, progress)
//	deps := sandbox.Deps{Machines: machines, Checkpoints: machines.Checkpoints(id), ...}
//	sb, err := sandbox.Start(ctx, deps, id, sandbox.Spec{Template: template})
//
// One Engine serves all sandboxes of a run directory: machines of every kind
// share its bases, and each sandbox sees its own checkpoints.
//
// # Resident machines
//
// The machines of a resident Engine outlive its process. The next one is
// opened on the same directory before any sandbox is recovered; Adopt then
// finds each machine by the record in its directory. SweepAll, once all
// sandboxes are recovered, ends what none of them has adopted.
//
// # Concurrency
//
// An Engine is safe for concurrent use by the operations of its sandboxes.
// Templates are shared by all host processes of a user: one builds under a
// lock, the others wait.
//
// # Failure
//
// Every VM has its own directory and, for a host that runs as root, its own
// user id and cgroup; all are gone when Kill returns. What a killed host
// process leaves is found by the records in the directories and removed by
// Sweep; a process is killed only when pid, start time, program and user are
// those of the record and the host was not booted since.
package machine
