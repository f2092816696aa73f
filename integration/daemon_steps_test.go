package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/internal/fault"
)

// daemonSteps are the steps of the daemon's own.
var daemonSteps = []string{
	"daemon.kind", "daemon.answer.begin", "daemon.answer", "daemon.exec", "daemon.exec.ended", "journal.remove",
}

// story is what an operator does in a test; a step that fails ends nothing.
func (h host) story(t *testing.T) (results []result) {
	for _, args := range [][]string{
		{"sandbox", "new", "--name", "a"},
		{"exec", "a", "--", "true"},
		{"snapshot", "a", "--label", "one"},
		{"rm", "-f", "a"},
	} {
		r := h.run(t, args...)
		results = append(results, r)
		if r.status != 0 && !strings.Contains(r.stderr, "remedy:") {
			t.Errorf("ratoon %s: status %d without a remedy:\n%s", strings.Join(args, " "), r.status, r.stderr)
		}
	}
	return results
}

// clean holds that the daemon works, and that nothing is left of what is gone.
func (h *host) clean(t *testing.T) {
	t.Helper()
	var left []daemon.Info
	h.read(t, &left, "ls")
	for _, s := range left {
		h.want(t, "rm", "-f", string(s.ID))
	}
	var kept []struct{ ID, Class string }
	h.read(t, &kept, "checkpoint", "ls")
	for _, c := range kept {
		if c.Class != "pinned" {
			t.Errorf("checkpoint %s of class %s is left after its sandbox", c.ID, c.Class)
		}
		h.want(t, "checkpoint", "unpin", c.ID)
		h.want(t, "checkpoint", "rm", c.ID)
	}
	for i, r := range h.story(t) {
		if r.status != 0 {
			t.Errorf("step %d after the fault: status %d\n%s", i, r.status, r.stderr)
		}
	}
	h.read(t, &left, "ls")
	if len(left) > 0 {
		t.Errorf("listed after all were removed: %+v", left)
	}
	for sub, stays := range map[string]int{"vm": 0, "checkpoints": 0, "bases": 1 /* the template's */, "tmp": 0, "logs": 0} {
		entries, err := os.ReadDir(filepath.Join(h.state, "daemon", sub))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		if len(entries) > stays {
			t.Errorf("left behind in %s: %v", sub, entries)
		}
	}
}

// TestDaemonSteps ends the daemon at its own steps, and lets them find the
// disk full: typed errors, and the next command or daemon finds all in order.
func TestDaemonSteps(t *testing.T) {
	t.Parallel()
	for _, label := range daemonSteps {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			t.Run("full", func(t *testing.T) {
				h := startHost(t, "", fault.Env+"="+label+"=enospc")
				h.story(t)
				h.clean(t)
				h.stop(t)
			})
			t.Run("killed", func(t *testing.T) {
				h := startHost(t, "", fault.Env+"="+label+"=kill")
				told := make(chan struct{})
				go func() {
					defer close(told)
					h.story(t) // its commands meet the next daemon half-way
				}()
				<-h.r.done
				awaitNobody(t, filepath.Join(h.state, "daemon", "vm"))
				h = startHost(t, h.state)
				<-told
				h.clean(t)
				h.stop(t)
			})
		})
	}
}
