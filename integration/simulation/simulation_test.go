package simulation_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "run only this schedule, with its trace")

func TestMain(m *testing.M) {
	flag.Parse()
	// Goroutines that become runnable together run in the same order each time.
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// number reads an environment variable.
func number(t *testing.T, name string, standard uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return standard
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

type outcome struct {
	violation string
	digest    uint64
	steps     int
	trace     []string
}

// play runs the schedule of a seed.
func play(t *testing.T, seed uint64, c *coverage, tracing bool) (out outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		w := newWorld(newPlan(seed), c, tracing)
		out.violation = w.run()
		out.digest, out.steps, out.trace = w.digest, w.steps, w.trace
	})
	return out
}

// TestSchedules runs RATOON_SIM_SCHEDULES schedules from RATOON_SIM_FIRST on, so
// that several processes can share them, and stops at RATOON_SIM_VIOLATIONS
// (one).
func TestSchedules(t *testing.T) {
	c := newCoverage()
	if *seedFlag != 0 {
		out := play(t, *seedFlag, c, true)
		t.Logf("plan %+v\n%s", newPlan(*seedFlag), strings.Join(out.trace, "\n"))
		if out.violation != "" {
			t.Fatalf("seed %d: %s", *seedFlag, out.violation)
		}
		return
	}
	n, first := number(t, "RATOON_SIM_SCHEDULES", 2000), number(t, "RATOON_SIM_FIRST", 1)
	steps, began := 0, time.Now()
	bad := 0
	for seed := first; seed < first+n; seed++ {
		out := play(t, seed, c, false)
		steps += out.steps
		if out.violation != "" {
			t.Errorf("seed %d, step %d: %s\nreplay: go test ./integration/simulation -run TestSchedules -v -seed %d", seed, out.steps, out.violation, seed)
			if bad++; bad == int(number(t, "RATOON_SIM_VIOLATIONS", 1)) {
				break
			}
		}
	}
	took := time.Since(began)
	t.Logf("%d schedules, %d steps, %.0f schedules/s", n, steps, float64(n)/took.Seconds())
	t.Logf("faults by step:\n%s", c)
	if n >= 2000 && bad == 0 {
		if m := c.missing(string(none)); len(m) > 0 {
			t.Errorf("no schedule came to %v", m)
		}
	}
	if n >= 20000 && bad == 0 {
		if m := c.missing("kill", "close", "crash"); len(m) > 0 {
			t.Errorf("no schedule ended the daemon at %v", m)
		}
	}
}

// TestReplay: a seed is a schedule. The runtime makes goroutines wait for each
// other in the order in which they run, which differs when a busy machine takes
// the processor away at a bad moment: that may happen once, not each time.
func TestReplay(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes the runtime choose goroutines at random; run without -race")
	}
	for seed := uint64(1); seed <= 60; seed++ {
		a := play(t, seed, newCoverage(), true)
		for try := 1; ; try++ {
			b := play(t, seed, newCoverage(), true)
			if a.digest == b.digest {
				break
			}
			if try == 3 {
				t.Errorf("seed %d has many traces:\n%s", seed, difference(a.trace, b.trace))
				break
			}
			a = b
		}
	}
}

func difference(a, b []string) string {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			other := "(end)"
			if i < len(b) {
				other = b[i]
			}
			return fmt.Sprintf("%s\n---\n%s\n+++\n%s", strings.Join(a[max(0, i-5):i], "\n"), a[i], other)
		}
	}
	return "one is longer"
}
