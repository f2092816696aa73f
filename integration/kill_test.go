package integration_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// faulty are the options of a run of programs/faults.py with a fault in it.
func faulty(state, spec string) options {
	return options{state: state, flags: []string{"--llm", "echo"}, env: []string{fault.Env + "=" + spec}}
}

// faulty is the same in a place.
func (p *place) faulty(spec string) options {
	o := p.in
	o.flags = []string{"--llm", "echo"}
	o.env = append(slices.Clone(o.env), fault.Env+"="+spec)
	return o
}

// labels are the labels that a run without faults passes, and how often.
func labels(t testing.TB) map[string]int {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	o := faulty(privateState(t), "")
	o.env = append(o.env, fault.EnvTrace+"="+trace)
	out := succeed(t, o, python(t, "faults.py")...)
	if want := "result 0 child_exited\nresult 1 kept\nresult 2 2\nalive 0\n"; out != want {
		t.Fatalf("without a fault the program prints\n%swant\n%s", out, want)
	}
	b, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, label := range strings.Fields(string(b)) {
		count[label]++
	}
	return count
}

// allSteps are the labels that a run of programs/faults.py passes;
// TestEveryStepHasALabel holds the list to what it does pass.
var allSteps = []string{
	"checkpoint.base.begin", "checkpoint.base.durable.dir.fsync", "checkpoint.base.durable.parent.fsync",
	"checkpoint.base.durable.ram.fsync", "checkpoint.base.durable.state.fsync", "checkpoint.base.import",
	"checkpoint.base.manifest.write", "checkpoint.base.publish.rename", "checkpoint.begin", "checkpoint.durable.dir.fsync",
	"checkpoint.durable.pages.fsync", "checkpoint.durable.parent.fsync", "checkpoint.durable.state.fsync",
	"checkpoint.manifest.write", "checkpoint.publish.rename", "checkpoint.remove.rename", "checkpoint.remove.unlink",
	"checkpoint.rewrite.dir.fsync", "checkpoint.rewrite.fsync", "checkpoint.rewrite.rename", "checkpoint.rewrite.write",
	"journal.branch", "journal.branch.after", "journal.branched", "journal.branched.after", "journal.cancel", "journal.cancel.after",
	"journal.cancelled", "journal.cancelled.after", "journal.collected", "journal.collected.after", "journal.create",
	"journal.discard", "journal.discard.after", "journal.end", "journal.end.after", "journal.exited", "journal.exited.after",
	"journal.finish", "journal.finish.after", "journal.intend", "journal.intend.after", "journal.left", "journal.left.after",
	"journal.reserve", "journal.reserve-llm", "journal.reserve-llm.after", "journal.reserve.after", "journal.restore",
	"journal.restore.after", "journal.restored", "journal.restored.after", "journal.settle-llm", "journal.settle-llm.after",
	"journal.start", "journal.start.after", "journal.started", "journal.started.after", "journal.wave", "journal.wave.after",
	"machine.record.rename", "machine.record.write", "memory.apply", "memory.capture.write", "memory.copy.write", "qemu.start", "qemu.state.write",
	"qmp.add-fd", "qmp.cont", "qmp.getfd", "qmp.migrate-incoming", "qmp.qmp_capabilities", "qmp.query-migrate",
	"qmp.query-status", "qmp.remove-fd", "qmp.stop", "qmp.xen-save-devices-state",
}

// someSteps are what the normal run kills and fails at.
var (
	someKills = []string{"journal.started", "checkpoint.publish.rename", "journal.branch", "journal.branch.after", "journal.restore.after", "qmp.cont#2"}
	someFulls = []string{"memory.capture.write", "checkpoint.manifest.write", "journal.branch", "journal.exited", "qemu.state.write#2"}
)

// TestKill ends the host at labelled steps, as kill -9 does.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, at := range steps(t, someKills) {
		t.Run(at, func(t *testing.T) {
			p := newPlace(t)
			r := run(t, p.faulty(at+"=kill"), python(t, "faults.py")...)
			if r.signal != syscall.SIGKILL {
				t.Fatalf("the run was not killed there: status %d\n%s%s", r.status, r.stdout, r.stderr)
			}
			checkAfterKill(t, p)
		})
	}
}

// steps are the labels to stop at: a sample, or each label where it is passed
// first and last.
func steps(t *testing.T, sample []string) []string {
	if !long() {
		return sample
	}
	var all []string
	count := labels(t)
	for _, label := range slices.Sorted(maps.Keys(count)) {
		all = append(all, label)
		if n := count[label]; n > 1 {
			all = append(all, fmt.Sprintf("%s#%d", label, n))
		}
	}
	return all
}

// checkAfterKill holds that the next run starts, that every checkpoint loads,
// and that nothing else is left.
func checkAfterKill(t *testing.T, p *place) {
	t.Helper()
	awaitNobody(t, p.state)
	list := listed(t, p.in)
	if r := p.run(t, "run", "--", "true"); r.status != 0 || r.stderr != "" {
		t.Errorf("the next run: status %d\n%s", r.status, r.stderr)
	}
	p.awaitAsBefore(t)
	if again := listed(t, p.in); !slices.Equal(list, again) {
		t.Errorf("the next run changed the checkpoints\nfrom %v\nto   %v", list, again)
	}
	for _, cp := range list {
		r := p.run(t, "run", "--from", string(cp.ID))
		if r.status != 0 || r.stdout != "loaded\n" {
			t.Errorf("%s checkpoint %q: status %d\n%s%s", cp.Class, cp.Label, r.status, r.stdout, r.stderr)
		}
	}
	runs, err := filepath.Glob(filepath.Join(p.state, "runs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 && len(runs) > 0 {
		t.Errorf("run directories without checkpoints are left: %v", runs)
	}
	for _, dir := range runs {
		for _, part := range []string{"vm/*", "tmp/*", "*.sock", "lost/*"} {
			if left, _ := filepath.Glob(filepath.Join(dir, part)); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		}
	}
	for _, cp := range list {
		if r := p.run(t, "checkpoint", "rm", string(cp.ID)); r.status != 0 {
			t.Errorf("checkpoint rm: status %d\n%s", r.status, r.stderr)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(p.state, "runs")); len(left) > 0 {
		t.Errorf("left behind without checkpoints: %v", left)
	}
	p.awaitAsBefore(t)
}

// awaitNobody waits until no process has a file under dir open.
func awaitNobody(t testing.TB, dir string) {
	t.Helper()
	var who []string
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
		if who = users(dir); len(who) == 0 {
			return
		}
	}
	t.Errorf("processes left behind: %v", who)
}

// users lists the processes with files under a directory.
func users(dir string) (who []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	more, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range append(links, more...) {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir+"/") {
			who = append(who, link+" "+target)
		}
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte("qemu")) && bytes.Contains(b, []byte(dir+"/")) {
			who = append(who, path)
		}
	}
	return who
}

// TestNoSpace lets writes find the disk full: typed errors, the machine lives,
// nothing is half published.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	for _, at := range steps(t, someFulls) {
		t.Run(at, func(t *testing.T) {
			state := privateState(t)
			r := run(t, faulty(state, at+"=enospc"), python(t, "faults.py")...)
			if r.signal != 0 || strings.Contains(r.stdout, string(protocol.CodeInternal)) || strings.Contains(r.stderr, "damaged") {
				t.Errorf("signal %v\n%s%s", r.signal, r.stdout, r.stderr)
			}
			// What fails before the program starts, or with its machine, ends the run.
			lives := r.status == 0 && strings.HasSuffix(r.stdout, "alive 0\n")
			typed := r.status == 125 && strings.HasPrefix(r.stderr, "ratoon: ") && !strings.Contains(r.stderr, "defect")
			if !lives && !typed || typed && strings.Contains(r.stdout, "result") {
				t.Errorf("status %d\n%s%s", r.status, r.stdout, r.stderr)
			}
			if left, _ := os.ReadDir(filepath.Join(state, "runs")); len(left) > 0 {
				t.Errorf("runs left behind: %v", left)
			}
			awaitNobody(t, state)
		})
	}
}

// late has a child that never ends.
const late = `
import ratoon, time
b = ratoon.branch(1, timeout=2)
if b.index is not None:
    time.sleep(3600)
for r in b.results():
    print(r.error.code, flush=True)
`

// TestTimeoutOnFullDisk: a child's time is over once; that it cannot be
// written then must not let the child live on.
func TestTimeoutOnFullDisk(t *testing.T) {
	t.Parallel()
	o := options{env: []string{fault.Env + "=journal.cancel=enospc,journal.cancelled=enospc"}}
	if out := succeed(t, o, "python3", "-c", late); out != "timeout\n" {
		t.Errorf("output %q", out)
	}
}

// waiting has a child, waits for it and says how it ended.
const waiting = `
import ratoon, time
b = ratoon.branch(1)
if b.index is not None:
    time.sleep(3600)
print("waiting", flush=True)
for r in b.results():
    print(r.error.code, flush=True)
`

// TestKillMachine ends VMM processes.
func TestKillMachine(t *testing.T) {
	t.Parallel()
	t.Run("child", func(t *testing.T) {
		r := start(t, options{}, "python3", "-c", waiting)
		r.await(t, "waiting")
		kill(t, newest(t, r.machines(t)))
		if res := r.wait(t); res.status != 0 || res.stdout != "waiting\nchild_lost\n" {
			t.Errorf("status %d\n%s%s", res.status, res.stdout, res.stderr)
		}
	})
	t.Run("parent", func(t *testing.T) {
		r := start(t, options{}, "python3", "-c", waiting)
		r.await(t, "waiting")
		child := newest(t, r.machines(t))
		for _, pid := range r.machines(t) {
			if pid != child {
				kill(t, pid)
			}
		}
		res := r.wait(t)
		if res.status != 125 || !strings.HasPrefix(res.stderr, "ratoon: ") || !strings.Contains(res.stderr, "remedy") {
			t.Errorf("status %d\n%s%s", res.status, res.stdout, res.stderr)
		}
		if syscall.Kill(child, 0) == nil {
			t.Errorf("the child's machine %d still runs", child)
		}
	})
}

// TestKillMachineAtSteps ends VMM processes while the host stands at a
// labelled step: the oldest one, and the newest. The program lives and is told,
// or the run ends with a typed error; nothing is left, and what is published
// loads.
func TestKillMachineAtSteps(t *testing.T) {
	t.Parallel()
	for _, at := range steps(t, []string{"memory.capture.write#3", "journal.branch.after"}) {
		for _, which := range []string{"oldest", "newest"} {
			if which == "newest" && !long() {
				continue
			}
			t.Run(at+"/"+which, func(t *testing.T) { killMachineAt(t, at, which) })
		}
	}
}

func killMachineAt(t *testing.T, at, which string) {
	p := newPlace(t)
	o := p.faulty(at + "=stop")
	o.flags = append(o.flags, "--keep")
	r := start(t, o, python(t, "faults.py")...)
	r.awaitStopped(t)
	pids := r.machines(t)
	slices.SortFunc(pids, func(a, b int) int { return strings.Compare(started(t, a), started(t, b)) })
	switch {
	case which == "newest" && len(pids) < 2:
		kill(t, r.cmd.Process.Pid)
		return // the oldest is the newest, or there is none
	case which == "newest":
		kill(t, pids[len(pids)-1])
	case len(pids) > 0:
		kill(t, pids[0])
	}
	if err := syscall.Kill(r.cmd.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	res := r.wait(t)
	lives := res.status == 0 && strings.HasSuffix(res.stdout, "alive 0\n")
	typed := res.status == 125 && strings.HasPrefix(res.stderr, "ratoon: ")
	if !lives && !typed || strings.Contains(res.stdout, string(protocol.CodeInternal)) || strings.Contains(res.stderr, "defect") {
		t.Errorf("status %d, signal %v\n%s%s", res.status, res.signal, res.stdout, res.stderr)
	}
	t.Logf("%d machines, status %d\n%s%s", len(pids), res.status, res.stdout, res.stderr)
	checkAfterKill(t, p)
}

// awaitStopped waits until the process stands at its fault.
func (r *running) awaitStopped(t *testing.T) {
	t.Helper()
	for {
		if fields, err := stat(r.cmd.Process.Pid); err == nil && fields[0] == "T" {
			return
		}
		select {
		case <-r.done:
			t.Fatalf("the run did not stop there\n%s%s", r.stdout, r.stderr)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// newest is the process that was started last.
func newest(t *testing.T, pids []int) int {
	t.Helper()
	if len(pids) != 2 {
		t.Fatalf("machines %v run, want 2", pids)
	}
	return slices.MaxFunc(pids, func(a, b int) int { return strings.Compare(started(t, a), started(t, b)) })
}

// started sorts processes by their start.
func started(t *testing.T, pid int) string {
	t.Helper()
	fields, err := stat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%20s", fields[19])
}

// stat are the fields of /proc/PID/stat from the state on.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.Fields(rest), nil
}
