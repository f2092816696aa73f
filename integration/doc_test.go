// Package integration_test runs the built command on real machines.
//
//	make build
//	go test ./integration -run TestScenarios/python
//
// Nothing is built here but the guest programs under programs/. The command is
// bin/ratoon, or what RATOON_BIN names; images and templates lie in the state
// directory, RATOON_STATE_DIR or .cache/state of the repository, where the
// first run makes them.
//
// Each run is a `ratoon run` with a deadline. A program in the guest prints
// what it sees, and the test compares it; no test asserts how fast anything
// is. Runs may share the machine with others: all waits are for events.
package integration_test
