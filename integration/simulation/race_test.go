//go:build race

package simulation_test

const raceEnabled = true
