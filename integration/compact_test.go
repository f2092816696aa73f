package integration_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// growing adds data to its memory before each snapshot, and tells in each
// timeline that comes from one what its memory holds.
const growing = `
import hashlib, os, ratoon
data = []
for i in range(5):
    data.append(b"".join(hashlib.sha256(b"%d %d" % (i, j)).digest() for j in range(1 << 18)))
    s = ratoon.snapshot("step %d" % i)
    if s.restored:
        print("restored", i, hashlib.sha256(b"".join(data)).hexdigest(), flush=True)
        os._exit(0)
    print("made", i, hashlib.sha256(b"".join(data)).hexdigest(), flush=True)
`

// TestCompacted restores from checkpoints whose pages are frames, and branches
// at one.
func TestCompacted(t *testing.T) {
	t.Parallel()
	o := options{state: privateState(t)}
	with := func(args ...string) options { c := o; c.args = args; return c }
	made := strings.Split(strings.TrimSpace(succeed(t, options{state: o.state, flags: []string{"--keep"}}, "python3", "-c", growing)), "\n")
	list := listed(t, o)
	if len(list) != 5 || len(made) != 5 {
		t.Fatalf("%d checkpoints; printed %q", len(list), made)
	}
	before := succeed(t, with("checkpoint", "du"))
	for i := range list {
		succeed(t, with("checkpoint", "compact", string(find(t, list, fmt.Sprintf("step %d", i)).ID)))
	}
	t.Logf("before:\n%safter:\n%s", before, succeed(t, with("checkpoint", "du")))
	succeed(t, with("checkpoint", "verify"))
	succeed(t, with("gc"))
	for _, i := range []int{4, 0, 2} {
		id := string(find(t, list, fmt.Sprintf("step %d", i)).ID)
		if got, want := succeed(t, with("run", "--from", id)), strings.Replace(made[i], "made", "restored", 1)+"\n"; got != want {
			t.Errorf("step %d: %q, want %q", i, got, want)
		}
	}

	// In a sandbox that goes on: the machine's own snapshots of what came from
	// frames, a branch at one, and its way to another host.
	h := startHost(t, o.state)
	// What a run has kept is found there too.
	other := h.want(t, "sandbox", "new", "--from", string(find(t, list, "step 4").ID))
	h.want(t, "exec", other, "--", "true")
	sb := h.want(t, "sandbox", "new")
	h.want(t, "exec", sb, "--", "sh", "-c", "head -c 5000000 /dev/urandom >/workspace/f; sha256sum /workspace/f >/workspace/sum")
	first := h.want(t, "snapshot", sb)
	h.want(t, "exec", sb, "--", "sh", "-c", "head -c 5000000 /dev/urandom >>/workspace/f; sha256sum /workspace/f >/workspace/sum")
	second := h.want(t, "snapshot", sb)
	h.want(t, "checkpoint", "compact", first, second)
	h.want(t, "restore", sb, first)
	h.want(t, "exec", sb, "--", "sha256sum", "-c", "/workspace/sum")
	third := h.want(t, "snapshot", sb)
	h.want(t, "checkpoint", "compact", third)
	h.want(t, "branch", "--at", second, sb, "3")
	for _, node := range []string{"0.0", "0.2"} {
		h.want(t, "exec", sb, "--node", node, "--", "sha256sum", "-c", "/workspace/sum")
	}
	h.want(t, "checkpoint", "verify")
	file := filepath.Join(t.TempDir(), "file")
	h.want(t, "checkpoint", "export", third, file)
	h.want(t, "checkpoint", "import", file)
	h.stop(t)
}
