package integration_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// apart is how far a machine's clock may be from the host's.
const apart = 50 * time.Millisecond

// seen is what one copy of programs/identity.py saw.
type seen struct {
	Drawn map[string]any
	First struct {
		Draws  []string
		Offset int64
	}
	Times []struct{ Before, Host, After, Offset int64 }
	Input string
}

// TestIdentity branches into 8 and compares all 9 copies.
func TestIdentity(t *testing.T) {
	t.Parallel()
	const n = 8
	model := newUpstream(t)
	o := model.options()
	o.stdin = "line1\nline2\n"
	r := start(t, o, python(t, "identity.py", "8")...)
	r.await(t, "loaded")
	model.awaitHeld(t, n, r.done)
	t.Run("no writable file in common", func(t *testing.T) { checkFiles(t, r.machines(t), n+1) })
	model.letGo()
	res := r.wait(t)
	_, text, ok := strings.Cut(res.stdout, "loaded\n")
	if res.status != 0 || !ok {
		t.Fatalf("status %d\n%s%s", res.status, res.stdout, res.stderr)
	}
	var all []seen
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != n+1 {
		t.Fatalf("%v: %s", err, text)
	}
	t.Run("drawn", func(t *testing.T) { checkDrawn(t, all) })
	t.Run("first draw", func(t *testing.T) { checkFirst(t, all) })
	t.Run("clock", func(t *testing.T) { checkClocks(t, all) })
	t.Run("input", func(t *testing.T) {
		for i, s := range all {
			if want := map[bool]string{true: "line2\n"}[i == 0]; s.Input != want {
				t.Errorf("copy %d reads %q, want %q", i, s.Input, want)
			}
		}
	})
}

func checkDrawn(t *testing.T, all []seen) {
	for name := range all[0].Drawn {
		who := map[any]int{}
		for i, s := range all {
			v := s.Drawn[name]
			if j, twice := who[v]; twice {
				t.Errorf("%s: copies %d and %d have %v", name, j, i, v)
			}
			who[v] = i
		}
	}
}

// checkFirst looks at the draws of a process that made no call. All copies are
// of one instant: either it lay before the first draw, or behind it and that
// one is the same everywhere.
func checkFirst(t *testing.T, all []seen) {
	distinct := func(k int) int {
		values := map[string]bool{}
		for _, s := range all {
			values[s.First.Draws[k]] = true
		}
		return len(values)
	}
	which := 0
	if distinct(0) == 1 {
		which = 1
	}
	if got := distinct(which); got != len(all) {
		t.Errorf("%d different first draws in %d copies", got, len(all))
	}
}

// checkClocks holds each copy's clock to stamps that the host made between two
// looks at it, and that clock to the one the watcher saw first of all.
func checkClocks(t *testing.T, all []seen) {
	var waits time.Duration
	for _, s := range all {
		for _, x := range s.Times {
			waits = max(waits, time.Duration(x.After-x.Before))
		}
	}
	worst := time.Duration(0)
	for i, s := range all {
		for _, x := range s.Times {
			early, late := time.Duration(x.Before-x.Host), time.Duration(x.Host-x.After)
			worst = max(worst, late)
			if early > apart || late > apart {
				t.Errorf("copy %d: the clock is %v ahead or %v behind, allowed %v", i, early, late, apart)
			}
			if d := time.Duration(x.Offset - s.First.Offset).Abs(); d > apart {
				t.Errorf("copy %d: the clock was changed by %v after the first look", i, d)
			}
		}
	}
	t.Logf("behind by at least %v at worst, while a question took up to %v", worst, waits)
}

// checkFiles compares what the machines have open on the host.
func checkFiles(t *testing.T, pids []int, want int) {
	if len(pids) != want {
		t.Fatalf("%d machines run, want %d", len(pids), want)
	}
	owner := map[inode]int{}
	mapped := map[string]int{}
	for _, pid := range pids {
		for _, f := range openFiles(t, pid) {
			if !f.writable || f.sealed {
				continue
			}
			if other, shared := owner[f.inode]; shared && other != pid {
				t.Errorf("machines %d and %d can both write %s", other, pid, f.path)
			}
			owner[f.inode] = pid
		}
		for _, f := range sharedMappings(t, pid) {
			if other, shared := mapped[f]; shared {
				t.Errorf("machines %d and %d share %s", other, pid, f)
			}
			mapped[f] = pid
		}
	}
}
