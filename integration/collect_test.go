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
		t.Errorf("%d checkpoints are left, want 6: %+v", len(all), all)
	}
	h.stop(t)
}
