package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// keeper holds data in memory and in /workspace, and proves it in each timeline
// that comes from its checkpoint.
const keeper = `
import hashlib, ratoon
data = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(1 << 19))
open("/workspace/f", "w").write("in the workspace")
s = ratoon.snapshot("to travel", durable=True)
print("restored" if s.restored else "made", hashlib.sha256(data).hexdigest(), open("/workspace/f").read(), flush=True)
`

// TestTransfer takes a checkpoint from one host to another as a file. The hosts
// have a kernel and an image in common, and neither templates nor a run.
func TestTransfer(t *testing.T) {
	t.Parallel()
	from, to := options{state: privateState(t)}, options{state: shortDir(t)}
	useKernelAndRoot(t, to.state)
	made := succeed(t, options{state: from.state, flags: []string{"--keep"}}, "python3", "-c", keeper)
	list := listed(t, from)
	if len(list) != 1 || !strings.HasPrefix(made, "made ") {
		t.Fatalf("%d checkpoints, printed %q", len(list), made)
	}
	id := string(list[0].ID)
	file := filepath.Join(t.TempDir(), "file")
	with := func(o options, args ...string) options { o.args = args; return o }
	succeed(t, with(from, "checkpoint", "export", id, file))
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB in the file", info.Size()>>20)

	if r := run(t, with(to, "run", "--from", id)); r.status != 2 {
		t.Fatalf("before the import: status %d\n%s", r.status, r.stderr)
	}
	if got := succeed(t, with(to, "checkpoint", "import", file)); got != id+"\n" {
		t.Fatalf("import prints %q", got)
	}
	want := strings.Replace(made, "made", "restored", 1)
	if got := succeed(t, with(to, "run", "--from", id)); got != want {
		t.Fatalf("after the import: %q, want %q", got, want)
	}
	// With another amount of memory than it was made with it is refused.
	if r := run(t, with(to, "run", "--memory", "512M", "--from", id)); r.status != 125 || !strings.Contains(r.stderr, "memory size") {
		t.Fatalf("with another memory: status %d\n%s", r.status, r.stderr)
	}

	h := startHost(t, to.state)
	for range 2 {
		if got := h.want(t, "checkpoint", "import", file); got != id {
			t.Fatalf("import into ratoond prints %q", got)
		}
	}
	sb := h.want(t, "sandbox", "new", "--from", id)
	if got := h.want(t, "exec", sb, "--", "cat", "/workspace/f"); got != "in the workspace" {
		t.Fatalf("in a sandbox made from it: %q", got)
	}
	h.stop(t)
}
