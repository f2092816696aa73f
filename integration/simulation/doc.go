// Package simulation runs the real coordinator (host/sandbox) against the real
// state machine of the guest (guest/agent.Machine) in a simulated world: VMs,
// links, disk, journal, clock, guest programs and operators. There is nothing
// in it but tests.
//
//	go test ./integration/simulation                                  # a few thousand schedules, all mutants
//	RATOON_SIM_SCHEDULES=100000 go test ./integration/simulation      # CI
//	go test ./integration/simulation -run TestSchedules -seed 4711 -v # one schedule, with its trace
//
// Everything that the coordinator asks of the world waits until the scheduler
// lets it happen. When nothing else can move (testing/synctest tells), the
// scheduler picks by seed what happens next: one of these calls, the arrival
// of a message, a step of a guest or of a program in it, an operator's wish, a
// fault, or the passing of time. After each step the invariants of section 10
// of docs/FORK_PROTOCOL.md are checked; at the end faults stop, and everything
// must come to rest with every caller answered and nothing left behind.
//
// A seed is a schedule: the same seed gives the same trace, as long as the
// code is the same. To that end the tests run on one processor, one at a time.
//
// # Mutants
//
// Each mutant of the protocol's model (docs/model/mutants.json) is applied to
// a copy of the sources of the coordinator or of the guest's machine, by
// replacing the text of a rule (mutants_test.go). The copy is built over the
// originals with -overlay, once, with all mutants in it; an environment
// variable then turns one on. Schedules are run until it is caught.
package simulation
