// Package machine makes real machines for host/sandbox: it joins a VMM
// driver, guest RAM, the checkpoint store and the template cache behind the
// coordinator's interfaces.
//
//	engine, err := machine.New(machine.Options{Driver: qemu.New(...), Dir: runDir, Cache: cacheDir, Spec: spec})
//	template, err := engine.Template(ctx, progress)
//	sb, err := sandbox.Start(ctx, sandbox.Deps{Machines: engine, Checkpoints: engine.Store(), ...}, sandbox.Spec{Template: template})
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
// user id; both are gone when Kill returns. What a killed host process leaves
// is found by its VM records and removed by Sweep.
package machine
