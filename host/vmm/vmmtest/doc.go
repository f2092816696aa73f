// Package vmmtest holds the tests that every driver of package vmm must pass,
// with real machines and a guest of its own that needs nothing of agentd.
//
//	func TestMain(m *testing.M) {
//		vmmtest.Host(qemu.New(qemu.Options{}))
//		os.Exit(m.Run())
//	}
//
//	func TestContract(t *testing.T) {
//		vmmtest.Run(t, vmmtest.Options{Driver: qemu.New(qemu.Options{})})
//	}
//
// The guest answers lines on the control port and echoes the bulk port. It
// fills memory with pages that name their seed and place, which the host finds
// in base and delta by their content and compares with what they must be.
//
// A host without the VMM, a kernel or the go command cannot run the suite: it
// is skipped, or fails where RATOON_REQUIRE_VM is set, as in CI.
package vmmtest
