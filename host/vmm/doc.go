// Package vmm says what the host needs of a virtual machine monitor. Drivers
// are in its subpackages; package vmmtest holds the tests that each must pass.
//
//	vm, err := driver.Boot(ctx, spec, ramFile)   // template: RAM in a file, shared
//	...                                          // until it is ready and quiesced
//	err = vm.Pause(ctx)
//	err = vm.SaveState(ctx, statePath)
//	err = vm.Kill(ctx)                           // ramFile is the base now
//	err = memory.Protect(ramFile)
//	base, err := memory.OpenBase(id, ramFile)
//	child, err := driver.Load(ctx, spec, vmm.Image{Base: base, State: statePath})
//	err = child.Resume(ctx)
//	link, err := link.Connect(ctx, child.Carrier(), link.Options{})
//
// A capture of a running machine is Pause, SaveState and memory.Capture, in
// that order and with nothing in between that touches guest memory.
//
// A resident machine lives on when the process that loaded it ends; the next
// one continues with
//
//	vm, err := driver.Adopt(ctx, spec, process)  // as VM.Process said
//
// # Concurrency
//
// A Driver is safe for concurrent use. So is a VM, but what its calls mean
// depends on their order, which is the owner's to keep.
//
// # Failure
//
// Boot and Load leave nothing behind when they fail: no process, descriptor or
// socket. Adopt changes nothing when it fails. Why a machine ended is an
// *EndError. A machine never outlives a reset, panic or power-off of its guest.
package vmm
