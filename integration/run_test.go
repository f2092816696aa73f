package integration_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/ratoon-project/ratoon/protocol"
)

// kept is what `checkpoint ls -o json` tells of each.
type kept struct {
	ID      protocol.CheckpointID `json:"id"`
	Sandbox protocol.SandboxID    `json:"sandbox"`
	Label   string                `json:"label"`
	Class   string                `json:"class"`
}

// listed lists the checkpoints of a state directory, "" being the shared one.
func listed(t testing.TB, o options) (list []kept) {
	t.Helper()
	o.args = []string{"checkpoint", "ls", "-o", "json"}
	out := succeed(t, o)
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return list
}

// find is the checkpoint with a label.
func find(t testing.TB, list []kept, label string) kept {
	t.Helper()
	for _, c := range list {
		if c.Label == label {
			return c
		}
	}
	t.Fatalf("no checkpoint %q among %v", label, list)
	return kept{}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	data := make([]byte, 10<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	r := run(t, options{stdin: string(data)}, "sh", "-c", "cat; echo warning >&2; exit 7")
	if r.status != 7 || r.stderr != "warning\n" {
		t.Errorf("status %d, standard error %q, want 7 and a warning", r.status, r.stderr)
	}
	if sha256.Sum256([]byte(r.stdout)) != sha256.Sum256(data) {
		t.Errorf("%d bytes came back of %d, or others", len(r.stdout), len(data))
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		argv   []string
		flags  []string
		status int
		stderr string
	}{
		"signal":    {[]string{"sh", "-c", "kill -9 $$"}, nil, 137, ""},
		"not found": {[]string{"no-such-program"}, nil, 127, "no-such-program"},
		"timeout":   {[]string{"sleep", "1000"}, []string{"--timeout", "2s"}, 124, "2s"},
		"context":   {[]string{"sh", "-c", `[ "$A:$(pwd):$(id -un)" = "b c:/usr:nobody" ]`}, []string{"-e", "A=b c", "-w", "/usr", "-u", "nobody"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, options{flags: c.flags}, c.argv...)
			if r.status != c.status || !strings.Contains(r.stderr, c.stderr) {
				t.Errorf("status %d, standard error %q; want %d and %q", r.status, r.stderr, c.status, c.stderr)
			}
		})
	}
}

// TestInterrupt: the first one is the program's, the second one ends all.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	r := start(t, options{}, "sh", "-c", "trap 'echo caught' INT; trap 'echo ended; exit 3' TERM; echo ready; while :; do sleep 0.1; done")
	r.await(t, "ready")
	machines := r.machines(t)
	signal := func(s syscall.Signal) {
		if err := r.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGINT)
	r.await(t, "caught")
	signal(syscall.SIGINT)
	res := r.wait(t)
	if res.status != 125 || !strings.Contains(res.stderr, "SIGINT") {
		t.Errorf("status %d, standard error %q after a second interrupt", res.status, res.stderr)
	}
	for _, pid := range machines {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("machine %d still runs", pid)
		}
	}

	r = start(t, options{}, "sh", "-c", "trap 'echo ended; exit 3' TERM; echo ready; while :; do sleep 0.1; done")
	r.await(t, "ready")
	signal(syscall.SIGTERM)
	if res := r.wait(t); res.status != 3 || !strings.Contains(res.stdout, "ended") {
		t.Errorf("status %d, output %q after SIGTERM", res.status, res.stdout)
	}
}

// TestOutputBeforeRestore: what a timeline has printed is there, once, however
// soon it ends after that.
func TestOutputBeforeRestore(t *testing.T) {
	t.Parallel()
	out := succeed(t, options{}, "python3", "-c", `
import ratoon
for i in range(10):
    cp = ratoon.snapshot()
    if not cp.restored:
        print("x" * (i * 20000) + f" line {i}", flush=True)
        ratoon.restore(cp.id, keep_present=i % 2 == 0)
print(" end", flush=True)
`)
	want := ""
	for i := range 10 {
		want += fmt.Sprintf("%s line %d\n", strings.Repeat("x", i*20000), i)
	}
	if want += " end\n"; out != want {
		t.Errorf("%d bytes of output, want %d:\n%s", len(out), len(want), strings.ReplaceAll(out, "x", ""))
	}
}

// TestTwoAtOnce runs two programs side by side and looks at their trees.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	state := privateState(t)
	const program = `
import ratoon, sys, time
b = ratoon.branch(1, labels=["below " + sys.argv[1]])
if b.index is not None:
    time.sleep(3600)
w = ratoon.whoami()
print(w.sandbox, flush=True)
sys.stdin.read()
b.cancel(0)
b.results()
`
	var runs []*running
	var ends []io.Closer
	for _, name := range []string{"a", "b"} {
		r, w := io.Pipe()
		runs = append(runs, start(t, options{input: r, state: state}, "python3", "-c", program, name))
		ends = append(ends, w)
	}
	want := map[protocol.SandboxID]string{}
	for i, r := range runs {
		want[protocol.SandboxID(strings.TrimSpace(r.await(t, "\n")))] = []string{"below a", "below b"}[i]
	}
	var trees []protocol.TreeResult
	out := succeed(t, options{state: state, args: []string{"tree", "-o", "json"}})
	if err := json.Unmarshal([]byte(out), &trees); err != nil || len(trees) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, tree := range trees {
		if len(tree.Timelines) != 2 || tree.State != "running" || tree.Timelines[1].Label != want[tree.Sandbox] || tree.Timelines[1].Node != "0.0" {
			t.Errorf("tree %+v, want a child %q", tree, want[tree.Sandbox])
		}
	}
	for id := range want {
		if out := succeed(t, options{state: state, args: []string{"tree", string(id)}}); !strings.Contains(out, "0.0  live  "+`"`+want[id]+`"`) {
			t.Errorf("tree %s: %s", id, out)
		}
	}
	for i, r := range runs {
		ends[i].Close()
		if res := r.wait(t); res.status != 0 {
			t.Errorf("status %d: %s", res.status, res.stderr)
		}
	}
}

// keeping makes checkpoints; restored, it branches where it is.
const keeping = `
import ratoon, sys
memory = ["before"]
cp = ratoon.snapshot(sys.argv[1], durable=True)
memory.append("after")
if cp.index is not None:
    ratoon.finish([cp.payload, memory])
if cp.restored:
    b = ratoon.branch(2, at=cp.id, payloads=["x", "y"])
    for r in b.results():
        print(r.index, r.result, r.error, flush=True)
print("restored" if cp.restored else "made", memory, flush=True)
`

// TestKeep goes on from a checkpoint after its sandbox has ended.
func TestKeep(t *testing.T) {
	t.Parallel()
	label := "keep \x1b[31m" // a label is the guest's
	if out := succeed(t, options{flags: []string{"--keep"}}, "python3", "-c", keeping, label); out != "made ['before', 'after']\n" {
		t.Errorf("output %q", out)
	}
	cp := find(t, listed(t, options{}), label)
	id := string(cp.ID)
	if out := ratoon(t, "checkpoint", "ls").stdout; !strings.Contains(out, id) || strings.Contains(out, "\x1b") {
		t.Errorf("checkpoint ls prints %q", out)
	}
	if out := ratoon(t, "checkpoint", "show", id).stdout; !strings.Contains(out, "durable") || strings.Contains(out, "\x1b") {
		t.Errorf("checkpoint show prints %q", out)
	}
	if out := ratoon(t, "tree", string(cp.Sandbox)).stdout; !strings.Contains(out, "ended") || !strings.Contains(out, id) || strings.Contains(out, "\x1b") {
		t.Errorf("tree prints %q", out)
	}
	want := "0 ['x', ['before', 'after']] None\n1 ['y', ['before', 'after']] None\nrestored ['before', 'after']\n"
	for range 2 { // as often as wanted
		if out := succeed(t, options{args: []string{"run", "--from", id}}); out != want {
			t.Errorf("run --from prints\n%swant\n%s", out, want)
		}
	}
	if r := ratoon(t, "checkpoint", "rm", id); r.status != 0 {
		t.Errorf("checkpoint rm: status %d: %s", r.status, r.stderr)
	}
	for _, args := range [][]string{{"checkpoint", "show", id}, {"checkpoint", "rm", id}, {"run", "--from", id}} {
		if r := ratoon(t, args...); r.status != 2 || !strings.Contains(r.stderr, id) {
			t.Errorf("%v: status %d: %s", args, r.status, r.stderr)
		}
	}
}

// TestFollow shows what the children print.
func TestFollow(t *testing.T) {
	t.Parallel()
	out := succeed(t, options{flags: []string{"--follow"}}, "python3", "-c", `
import ratoon
print("both")
b = ratoon.branch(2)
if b.index is not None:
    print("child", b.index, "\x1b[2J", flush=True)
    ratoon.finish()
b.results()
print("parent", flush=True)
`)
	for _, want := range []string{"0.0| child 0 \\x1b[2J\n", "0.1| child 1 \\x1b[2J\n", "parent\n"} {
		if strings.Count(out, want) != 1 {
			t.Errorf("output\n%swithout one %q", out, want)
		}
	}
	if strings.Count(out, "both") != 1 {
		t.Errorf("what was printed before the branch is there %d times:\n%s", strings.Count(out, "both"), out)
	}
}

// TestPartialBranch: one of three children cannot be started.
func TestPartialBranch(t *testing.T) {
	t.Parallel()
	const program = `
import sys, ratoon
try:
    b = ratoon.branch(3, min_ok=int(sys.argv[1]))
except ratoon.BranchFailed as e:
    print(e.code, len(e.details["children"]))
    sys.exit()
if b.index is not None:
    ratoon.finish(b.index)
print(b.n, sorted("done" if r.ok else r.error.code for r in b.results()))
`
	for least, want := range map[string]string{"2": "3 ['child_lost', 'done', 'done']\n", "3": "branch_failed 1\n"} {
		t.Run(least, func(t *testing.T) {
			// The program's own machine is the first, its children follow.
			o := options{env: []string{"RATOON_FAULT=qemu.start#4=eio"}}
			if out := succeed(t, o, "python3", "-c", program, least); out != want {
				t.Errorf("output %q, want %q", out, want)
			}
		})
	}
}

// TestTerminal runs a program on a terminal and stops it there.
func TestTerminal(t *testing.T) {
	t.Parallel()
	const spawn = `
import fcntl, os, pty, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
os.write(fd, b"typed\n")
while True:
    try:
        b = os.read(fd, 1024)
    except OSError:
        break
    sys.stdout.buffer.write(b)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
`
	const program = `
import os, ratoon
line = input()
cp = ratoon.snapshot()
if not cp.restored:
    ratoon.restore(cp.id)
size = os.get_terminal_size()
print(os.isatty(0), os.isatty(1), size.lines, size.columns, line)
`
	r := run(t, options{wrap: []string{"python3", "-c", spawn}, flags: []string{"--tty"}}, "python3", "-c", program)
	if want := "True True 33 77 typed\r\n"; r.status != 0 || strings.Count(r.stdout, want) != 1 {
		t.Errorf("status %d, output %q, want one %q\n%s", r.status, r.stdout, want, r.stderr)
	}
}

// TestModelBudgets: what a reply has cost counts before the next query.
func TestModelBudgets(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--llm-tokens=3": "2 over_budget llm_tokens\n", // each reply takes 2
		"--llm-cost=0.4": "2 over_budget llm_cost\n",   // and 0.25
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			o := u.options()
			o.flags = append(o.flags, flag)
			out := succeed(t, o, "python3", "-c", `
import ratoon
for n in range(5):
    try:
        ratoon.llm_query("q")
    except ratoon.OverBudget as e:
        print(n, e.code, e.details["budget"])
        break
`)
			if out != want || u.total() != 2 {
				t.Errorf("output %q after %d queries, want %q after 2", out, u.total(), want)
			}
		})
	}
}

// TestAtTheLimit restores in a sandbox that may have no more machines.
func TestAtTheLimit(t *testing.T) {
	t.Parallel()
	out := succeed(t, options{flags: []string{"--max-live", "1"}}, "python3", "-c", `
import ratoon
cp = ratoon.snapshot()
if not cp.restored:
    ratoon.restore(cp.id)
try:
    ratoon.branch(1)
except ratoon.OverBudget as e:
    print("restored", e.details["budget"], e.details["limit"], e.details["used"])
`)
	if want := "restored live 1 1\n"; out != want {
		t.Errorf("output %q, want %q", out, want)
	}
}

// TestDeterministic: the helpers' random numbers follow --seed.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	draw := func(seed string) string {
		return succeed(t, options{flags: []string{"--seed", seed}}, "python3", "-c", `
import os, random, ratoon
b = ratoon.branch(2)
if b.index is not None:
    ratoon.finish([random.random(), os.urandom(4).hex()])
a, b = (r.result for r in b.results())
assert a[0] != b[0] and a[1] != b[1], (a, b)
print(a[0], b[0])
`)
	}
	a := draw("one")
	if b := draw("one"); a != b {
		t.Errorf("the same seed draws %s and %s", a, b)
	}
	if b := draw("two"); a == b {
		t.Errorf("different seeds draw %s", a)
	}
}
