package integration_test

import (
	"strings"
	"sync"
	"testing"
)

// busy snapshots and branches; each child proves what it has in memory.
const busy = `
import hashlib, os, ratoon
data = []
for i in range(6):
    data.append(os.urandom(1 << 20))
    ratoon.snapshot("step %d" % i)
    want = hashlib.sha256(b"".join(data)).hexdigest()
    b = ratoon.branch(2)
    if b.index is not None:
        ratoon.finish(hashlib.sha256(b"".join(data)).hexdigest())
    assert [r.result for r in b.results()] == [want, want], i
print("done")
`

// TestCollectUnderLoad collects and compacts while a sandbox snapshots and
// branches: nothing that is needed goes.
func TestCollectUnderLoad(t *testing.T) {
	t.Parallel()
	h := startHost(t, "")
	sb := h.want(t, "sandbox", "new")
	r := start(t, options{state: h.state, args: []string{"exec", sb, "--", "python3", "-c", busy}})
	var cleaning sync.WaitGroup
	cleaning.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-r.done:
				t.Logf("collected %d times", n)
				return
			default:
			}
			h.want(t, "gc")
			var all []struct{ ID string }
			h.read(t, &all, "checkpoint", "ls")
			if len(all) > 0 {
				h.want(t, "checkpoint", "compact", all[len(all)-1].ID)
			}
		}
	})
	got := r.wait(t)
	cleaning.Wait()
	if got.status != 0 || !strings.HasSuffix(got.stdout, "done\n") {
		t.Fatalf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
	h.want(t, "checkpoint", "verify")
	var all []struct{ ID, Label string }
	h.read(t, &all, "checkpoint", "ls")
	if len(all) != 6 {
		t.Fatalf("%d checkpoints are left, want 6: %+v", len(all), all)
	}

	// What an operator keeps stays when all else goes, and serves again.
	pinned, expired := all[0].ID, all[1].ID
	h.want(t, "checkpoint", "pin", pinned)
	for _, args := range [][]string{{"rm", pinned}, {"rm", "--cascade", pinned}} {
		if r := h.run(t, append([]string{"checkpoint"}, args...)...); r.status != 125 || !strings.Contains(r.stderr, "unpin") {
			t.Errorf("%v of a pinned one: status %d\n%s", args, r.status, r.stderr)
		}
	}
	h.want(t, "checkpoint", "expire", expired, "0s")
	h.want(t, "checkpoint", "rm", "--cascade", all[2].ID)
	if got := h.want(t, "gc"); !strings.Contains(got, "expired checkpoints  ") {
		t.Errorf("gc prints\n%s", got)
	}
	h.want(t, "sandbox", "rm", "-f", sb)
	h.read(t, &all, "checkpoint", "ls")
	if len(all) != 1 || all[0].ID != pinned {
		t.Fatalf("after the sandbox is gone: %+v, want the pinned one", all)
	}
	again := h.want(t, "sandbox", "new", "--from", pinned)
	h.want(t, "exec", again, "--", "true")
	h.want(t, "sandbox", "rm", "-f", again)
	h.want(t, "checkpoint", "unpin", pinned)
	h.want(t, "checkpoint", "rm", pinned)
	if got := h.want(t, "checkpoint", "du"); strings.Contains(got, "sb-") {
		t.Errorf("du after all is gone:\n%s", got)
	}
	h.stop(t)
}
