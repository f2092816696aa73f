package boot_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// TestMachine takes one real machine through a life: boot, programs, a
// capture without a host that captures, calls, a copy's identity, deaths of
// its worker. The steps build on each other.
func TestMachine(t *testing.T) {
	t.Parallel()
	v := startVM(t, "")
	first, second := protocol.NewTimelineID(), protocol.NewTimelineID()

	h := v.connect(t)
	if h.hello.State != protocol.StateRunning || h.hello.Start != 1 || h.hello.Version != protocol.Version {
		t.Fatalf("first hello: %+v", h.hello)
	}
	checkEnvironment(t, h)
	bootID := h.run("cat /proc/sys/kernel/random/boot_id")

	// Something runs and writes while the machine is stopped.
	ticker := h.start("for i in $(seq 20); do echo tick $i; sleep 0.05; done; cat; echo end")
	h.quiesce(1, protocol.Key{})

	h = v.connect(t)
	if h.hello.State != protocol.StateQuiesced || h.hello.Freeze != 1 {
		t.Fatalf("hello after the freeze: %+v", h.hello)
	}
	h.send(&protocol.Abort{Freeze: 1})
	if got := expect[*protocol.Hello](h); got.State != protocol.StateQuiesced {
		t.Fatalf("abort was obeyed: %+v", got)
	}
	h.thaw(1, first, func(th *protocol.Thaw) { th.Time = time.Now().Add(time.Hour).UnixNano() })
	checkIdentity(t, h, bootID)
	out, _ := h.exec(protocol.ExecOpen{ID: ticker.id}).wait()
	if !strings.HasSuffix(out, "tick 20\nend\n") || strings.Count(out, "tick") != 20 {
		t.Errorf("output over the freeze: %q", out)
	}

	checkCall(t, h)
	h = checkCopy(t, v, h, second)
	h = checkWorkerDeath(t, v, h, second)
	checkSignals(t, h)
	checkFrozenDeath(t, v, h)
}

func checkEnvironment(t *testing.T, h *host) {
	t.Helper()
	checks := [][2]string{
		{"cat /proc/self/oom_score_adj", "0"},
		{"cut -d: -f3 /proc/1/cgroup", "/ratoon"},
		{"cat /proc/1/oom_score_adj", "-1000"},
		// The agent's threads, and what it starts for a user.
		{"for t in /proc/1/task/* /proc/$PPID/task/*; do cat /proc/${t##*/}/timerslack_ns; done | sort -u", "4000000"},
		{"cat /proc/self/timerslack_ns", "50000"},
		{"cat /sys/fs/cgroup/ratoon/cpu.weight /sys/fs/cgroup/user/cpu.weight", "10000\n100"},
		{"stat -fc %T /workspace /tmp /dev/shm", "tmpfs\ntmpfs\ntmpfs"},
		{"stat -c %a /workspace /tmp /dev/shm", "777\n1777\n1777"},
		{"echo x >/workspace/a && rm /workspace/a && echo ok", "ok"},
		{"echo x >/etc/written && echo ok", "ok"},
		{"echo /sys/class/net/*; cat /sys/class/net/lo/operstate", "/sys/class/net/lo\nunknown"},
		{"test -e /modules -o -e /newroot || echo clean", "clean"},
		{"head -c 8 /dev/random | wc -c", "8"},
		{"cat /proc/sys/kernel/panic", "-1"},
		{"command -v agentd", "/usr/local/bin/agentd"},
		{"echo /dev/pts/ptmx /dev/fd/0", "/dev/pts/ptmx /dev/fd/0"},
		{"stat -c '%a %F' /run/ratoon/agent.sock", "666 socket"},
		// ENOSPC, and no OOM.
		{"dd if=/dev/zero of=/tmp/big bs=1M; echo $?; rm -f /tmp/big", "1"},
	}
	script, end := "exec 2>/dev/null\n", "--\n"
	for _, c := range checks {
		script += "(" + c[0] + "); echo --\n" // a program start takes seconds on a busy host
	}
	out, _ := h.start(script).wait()
	got := strings.Split(out, end)
	if len(got) != len(checks)+1 {
		t.Fatalf("%d answers to %d checks: %q", len(got)-1, len(checks), out)
	}
	for i, c := range checks {
		if g := strings.TrimSpace(got[i]); g != c[1] {
			t.Errorf("%s: got %q, want %q", c[0], g, c[1])
		}
	}
}

func checkIdentity(t *testing.T, h *host, oldBootID string) {
	t.Helper()
	lines := strings.Split(h.run("hostname; cat /etc/hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id; date +%s"), "\n")
	if len(lines) != 5 || lines[0] != "node-0" || lines[1] != "node-0" || len(lines[2]) != 32 || len(lines[3]) != 36 || lines[3] == oldBootID {
		t.Errorf("identity: %q (boot id before: %s)", lines, oldBootID)
	}
	clock, _ := strconv.ParseInt(lines[len(lines)-1], 10, 64)
	if d := time.Until(time.Unix(clock, 0)); d < 59*time.Minute || d > 61*time.Minute {
		t.Errorf("the guest's clock is off by %v, want one hour", d)
	}
}

func value(t *testing.T, v any) []byte {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func checkCall(t *testing.T, h *host) {
	t.Helper()
	p := h.start("agentd call --format env whoami; agentd call nonsense; echo $?; agentd call tree; echo $?")
	c := expect[*protocol.Call](h)
	if c.Kind != protocol.CallWhoami {
		t.Fatalf("call: %+v", c)
	}
	h.send(&protocol.Outcome{Key: c.Key, Value: value(t, protocol.WhoamiResult{Node: "0", Label: "it's", Timeline: c.Key.Timeline})})
	expect[*protocol.OutcomeAck](h)
	c = expect[*protocol.Call](h)
	h.send(&protocol.Outcome{Key: c.Key, Error: protocol.Errorf(protocol.CodeOverBudget, "no more")})
	expect[*protocol.OutcomeAck](h)
	out, _ := p.wait()
	for _, want := range []string{"RATOON_NODE='0'\n", `RATOON_LABEL='it'\''s'`, "RATOON_INDEX=''\n", "agentd: over_budget: tree: no more\n", "\n2\n", "\n1\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("agentd call printed %q, without %q", out, want)
		}
	}
	// A caller that goes away.
	h.start("agentd call sync & until [ -e /workspace/go ]; do sleep 0.1; done; kill -9 $!")
	c = expect[*protocol.Call](h)
	h.run("touch /workspace/go")
	if gone := expect[*protocol.CallGone](h); gone.Key != c.Key {
		t.Errorf("gone: %v, want %v", gone.Key, c.Key)
	}
}

// checkCopy makes the machine a child of itself: what a loaded copy does.
func checkCopy(t *testing.T, v *vm, h *host, child protocol.TimelineID) *host {
	t.Helper()
	random := h.run("head -c 16 /dev/urandom | od -An -tx1")
	bystander := h.start("agentd call tree; echo status=$?")
	expect[*protocol.Call](h)
	brancher := h.start(`eval "$(agentd call --format env branch 2)"; echo index=$RATOON_INDEX; sleep 0.3; echo oops >&2; exit 7`)
	c := expect[*protocol.Call](h)
	q := h.quiesce(1, c.Key) // freeze numbers start anew in a timeline
	if len(q.Execs) < 2 {
		t.Errorf("quiesced lists %d programs", len(q.Execs))
	}
	h = v.connect(t)
	if len(h.hello.Pending) != 2 {
		t.Errorf("hello: %+v", h.hello)
	}
	index := 1
	h.thaw(1, child, func(th *protocol.Thaw) {
		th.Key = c.Key
		th.Outcome = &protocol.Outcome{Key: c.Key, Value: value(t, protocol.BranchResult{ID: protocol.NewBranchID(), Index: &index, N: 2})}
		th.Identity.Hostname, th.Identity.Node = "node-0-1", "0.1"
	})
	if out, _ := h.exec(protocol.ExecOpen{ID: bystander.id}).wait(); !strings.Contains(out, "interrupted_by_fork") || !strings.Contains(out, "status=3") {
		t.Errorf("the bystander printed %q", out)
	}
	if out, _ := h.exec(protocol.ExecOpen{ID: brancher.id}).wait(); !strings.Contains(out, "index=1\n") {
		t.Errorf("the brancher printed %q", out)
	}
	e := expect[*protocol.CallerExited](h)
	if e.Key != c.Key || e.Status.Code != 7 || string(e.Stderr) != "oops\n" {
		t.Errorf("caller exited: %+v", e)
	}
	if now := h.run("head -c 16 /dev/urandom | od -An -tx1"); now == random {
		t.Error("the same random bytes twice")
	}
	if name := h.run("hostname"); name != "node-0-1" {
		t.Errorf("hostname of the child: %s", name)
	}
	return h
}

func checkWorkerDeath(t *testing.T, v *vm, h *host, tl protocol.TimelineID) *host {
	t.Helper()
	h.start("(agentd call tree; echo status=$?) >/workspace/out 2>&1 & until [ -e /workspace/die ]; do sleep 0.1; done; kill -9 $(pgrep -f '^agentd worker')")
	expect[*protocol.Call](h)
	h.start("touch /workspace/die")
	<-h.l.Done()
	h.l.Close()
	h = v.connect(t)
	if h.hello.Start != 2 || h.hello.State != protocol.StateRunning || h.hello.Timeline != tl || h.hello.Freeze != 0 || len(h.hello.Pending) != 0 {
		t.Fatalf("hello of the second worker: %+v", h.hello)
	}
	expect[*protocol.CallerExited](h) // of the brancher: PID 1 kept whom to watch
	until(t, "the end of the lost call", func() bool {
		return strings.Contains(h.run("cat /workspace/out"), "status=4")
	})
	h.quiesce(1, protocol.Key{})
	h = v.connect(t)
	h.thaw(1, tl, nil)
	expect[*protocol.CallerExited](h) // again, since nothing acknowledges it
	return h
}

// checkSignals sends every signal that can be taken to PID 1 and to the worker.
func checkSignals(t *testing.T, h *host) {
	t.Helper()
	worker := h.run("pgrep -f '^agentd worker'")
	for _, pid := range []string{"1", worker} {
		h.run(fmt.Sprintf("for s in $(seq 64); do case $s in 9|19) ;; *) kill -$s %s 2>/dev/null;; esac; done; true", pid))
	}
	if now := h.run("pgrep -f '^agentd worker'"); now != worker {
		t.Errorf("worker: pid %s before the signals, %s after", worker, now)
	}
	h.run("kill -9 1; kill -19 1")
	// Orphans are reaped, also a crowd of them.
	if n := h.run("for i in 1 2 3 4 5 6 7 8; do (sleep 0 &) ; done; until [ -z \"$(pgrep -x sleep)\" ]; do :; done; ps -eo stat= | grep -c '^Z' || true"); n != "0" {
		t.Errorf("%s zombies", n)
	}
}

// checkFrozenDeath kills the worker while the users are frozen, from outside
// their cgroup.
func checkFrozenDeath(t *testing.T, v *vm, h *host) {
	t.Helper()
	h.start("echo $$ >/sys/fs/cgroup/ratoon/cgroup.procs; touch /workspace/armed; exec 0<&- 1>&- 2>&-; until grep -q 'frozen 1' /sys/fs/cgroup/user/cgroup.events; do sleep 0.1; done; sleep 8; kill -9 $(pgrep -f '^agentd worker')")
	h.run("until [ -e /workspace/armed ]; do sleep 0.1; done")
	h.quiesce(2, protocol.Key{})
	h = v.connect(t)
	if h.hello.State == protocol.StateQuiesced {
		<-h.l.Done()
		h.l.Close()
		h = v.connect(t)
	}
	if h.hello.State != protocol.StateLost || h.hello.Start != 3 || h.hello.Freeze != 2 {
		t.Fatalf("hello after the death: %+v", h.hello)
	}
	h.send(&protocol.Thaw{Freeze: 2, Timeline: h.hello.Timeline, Entropy: make([]byte, 32)})
	if got := expect[*protocol.Hello](h); got.State != protocol.StateLost {
		t.Errorf("a lost guest answered %+v", got)
	}
}

// TestNoRoot boots a machine whose root is missing: it says so and powers off.
func TestNoRoot(t *testing.T) {
	t.Parallel()
	v := startVM(t, "ratoon.root=/dev/vdz")
	select {
	case <-v.exited:
	case <-time.After(2 * time.Minute):
		t.Fatal("the machine did not power off")
	}
	if want := "ratoon: boot: mount the root: /dev/vdz did not appear"; !strings.Contains(v.consoleText(), want) {
		t.Errorf("the console has no %q:\n%s", want, v.consoleText())
	}
}
