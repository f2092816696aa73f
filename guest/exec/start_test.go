package exec_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/guest/exec"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestStatusIsExact(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	for script, want := range map[string]protocol.ExitStatus{
		"exit 0":                {},
		"exit 7":                {Code: 7},
		"exit 255":              {Code: 255},
		"kill -TERM $$":         {Code: -1, Signal: "SIGTERM"},
		"kill -SEGV $$":         {Code: -1, Signal: "SIGSEGV"},
		"kill -36 $$; sleep 50": {Code: -1, Signal: "SIGRTMIN+2"},
	} {
		h, id := start(t, m, shell(script))
		if diff := cmp.Diff(want, h.wait().Status); diff != "" {
			t.Errorf("%s (-want +got):\n%s", script, diff)
		}
		if diff := cmp.Diff(want, <-m.Wait(id)); diff != "" {
			t.Errorf("Wait of %s (-want +got):\n%s", script, diff)
		}
	}
	if _, ok := <-m.Wait(protocol.NewExecID()); ok {
		t.Error("Wait for an unknown program gave a status")
	}
}

func TestOutputAndEnvironment(t *testing.T) {
	t.Parallel()
	etc := t.TempDir()
	write(t, filepath.Join(etc, "passwd"), "root:x:0:0::/root:/bin/sh\nann:x:1234:1235::/home/ann:/bin/sh\n")
	write(t, filepath.Join(etc, "group"), "ann:x:1235:\nextra:x:1300:bob,ann\nwheel:x:1301:\n")
	dir := t.TempDir()
	m := newManager(t, exec.Config{AccountDir: etc, Dir: dir, Env: map[string]string{"FROM_IMAGE": "i", "BOTH": "image"}})
	s := shell(`echo "$PATH|$HOME|$USER|$LANG|$TERM|$FROM_IMAGE|$BOTH|$PWD"; echo err >&2; ps -o sid= -o pid= $$ | tr -s ' '`)
	s.Env = map[string]string{"BOTH": "spec"}
	h, id := start(t, m, s)
	exit := h.wait()
	lines := strings.Split(h.stdout(), "\n")
	want := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin|/root|root|C.UTF-8||i|spec|" + dir
	if lines[0] != want {
		t.Errorf("environment: got %q, want %q", lines[0], want)
	}
	if f := strings.Fields(lines[1]); len(f) != 2 || f[0] != f[1] {
		t.Errorf("the program has no session of its own: %q", lines[1])
	}
	if h.stderr() != "err\n" || exit.Stderr != 4 || exit.Stdout != uint64(len(h.stdout())) {
		t.Errorf("stderr %q, exit %+v", h.stderr(), exit)
	}
	if got := string(m.StderrTail(id)); got != "err\n" {
		t.Errorf("stderr tail after ack: got %q, want %q", got, "err\n")
	}
}

func TestUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can change user; run the tests as root")
	}
	etc := t.TempDir()
	write(t, filepath.Join(etc, "passwd"), "root:x:0:0::/root:/bin/sh\nann:x:1234:1235::/home/ann:/bin/sh\nbad:x:y:1::/:/bin/sh\n")
	write(t, filepath.Join(etc, "group"), "ann:x:1235:\nextra:x:1300:bob,ann\nwheel:x:1301:\n")
	m := newManager(t, exec.Config{AccountDir: etc, Dir: "/"})
	for user, want := range map[string]string{
		"":          "0 0 root /root",
		"ann":       "1234 1235 ann /home/ann [1235 1300]",
		"1234":      "1234 1235 ann /home/ann [1235 1300]",
		"ann:wheel": "1234 1301 ann /home/ann [1301 1300]",
		"77:88":     "77 88 77 / [88]",
		"nobodyx":   "not_found",
		"ann:none":  "not_found",
		"bad":       "invalid_argument",
		"-1":        "not_found",
	} {
		s := shell(`echo "$(id -u) $(id -g) $USER $HOME [$(id -G)]"`)
		s.User = user
		h, _ := start(t, m, s)
		h.until("exit or error", func() bool { return h.exit != nil || h.err != nil })
		got := strings.TrimSpace(h.stdout())
		if h.err != nil {
			got = string(h.err.Code)
		}
		if got != want && !(user == "" && strings.HasPrefix(got, want)) {
			t.Errorf("user %q: got %q, want %q", user, got, want)
		}
	}
}

func TestStartRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plain"), "no program")
	write(t, filepath.Join(dir, "garbage"), "\x00\x01")
	write(t, filepath.Join(dir, "lost"), "#!/no/such/interpreter\n")
	for _, f := range []string{"garbage", "lost"} {
		if err := os.Chmod(filepath.Join(dir, f), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := newManager(t, exec.Config{Dir: dir})
	tests := []struct {
		name  string
		spec  *protocol.ExecSpec
		code  protocol.Code
		names string // what the message must hold
	}{
		{"unknown", spec("no-such-prog"), protocol.CodeNotFound, `"no-such-prog" in PATH /usr/local/sbin`},
		{"own path", &protocol.ExecSpec{Argv: []string{"sh"}, Env: map[string]string{"PATH": "/empty"}}, protocol.CodeNotFound, `"sh" in PATH /empty`},
		{"absolute", spec("/no/such"), protocol.CodeNotFound, "/no/such"},
		{"not executable", spec("./plain"), protocol.CodeInvalidArgument, "plain"},
		{"a directory", spec("/usr"), protocol.CodeInvalidArgument, "/usr"},
		{"no format", spec("./garbage"), protocol.CodeInvalidArgument, "garbage"},
		{"no interpreter", spec("./lost"), protocol.CodeNotFound, "interpreter"},
		{"no argv", spec(), protocol.CodeInvalidArgument, "argv"},
		{"NUL", spec("sh", "a\x00b"), protocol.CodeInvalidArgument, "NUL"},
		{"bad dir", &protocol.ExecSpec{Argv: []string{"sh"}, Dir: "/no/dir"}, protocol.CodeNotFound, "/no/dir"},
		{"relative dir", &protocol.ExecSpec{Argv: []string{"sh"}, Dir: "etc"}, protocol.CodeInvalidArgument, "etc"},
		{"bad env", &protocol.ExecSpec{Argv: []string{"sh"}, Env: map[string]string{"A=B": ""}}, protocol.CodeInvalidArgument, "A=B"},
		{"bad timeout", &protocol.ExecSpec{Argv: []string{"sh"}, Timeout: -1}, protocol.CodeInvalidArgument, "timeout"},
		{"too long", spec("sh", strings.Repeat("x", 1<<20)), protocol.CodeTooLarge, "sh"},
		{"attach only", nil, protocol.CodeNotFound, "no program"},
	}
	for _, tt := range tests {
		h, _ := start(t, m, tt.spec)
		if e := h.waitError(); e.Code != tt.code || !strings.Contains(e.Message, tt.names) {
			t.Errorf("%s: got %s %q, want %s naming %q", tt.name, e.Code, e.Message, tt.code, tt.names)
		}
		<-h.served
	}
	h := attach(t, m, protocol.ExecOpen{ID: "../etc", Start: spec("true")}, hostOptions{})
	if e := h.waitError(); e.Code != protocol.CodeInvalidArgument {
		t.Errorf("a path as id: got %s, want %s", e.Code, protocol.CodeInvalidArgument)
	}
	if n := m.Live(); n != 0 {
		t.Errorf("%d programs are left of refused starts", n)
	}
}

func TestForkFailureIsTyped(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]protocol.Code{
		syscall.EAGAIN: protocol.CodeOverBudget,
		syscall.ENOMEM: protocol.CodeOverBudget,
		syscall.EMFILE: protocol.CodeBusy,
		syscall.EPERM:  protocol.CodeInvalidArgument,
		syscall.EIO:    protocol.CodeInternal,
	} {
		if got := protocol.CodeOf(exec.StartError(err)); got != want {
			t.Errorf("%v: got %s, want %s", err, got, want)
		}
	}
}

func TestStartTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := newManager(t, exec.Config{Dir: dir})
	open := protocol.ExecOpen{ID: protocol.NewExecID(), Start: shell("echo run >>ran; echo done")}
	streams := make([]*host, 8)
	for i := range streams {
		streams[i] = attach(t, m, open, hostOptions{noAck: true})
	}
	<-m.Wait(open.ID)
	for _, h := range streams {
		h.until("exit or replacement", func() bool { return h.exit != nil || h.err != nil })
		if h.err != nil && h.err.Code != protocol.CodeCancelled {
			t.Errorf("got %v, want %s", h.err, protocol.CodeCancelled)
		}
	}
	h := attach(t, m, open, hostOptions{}) // after its end
	if h.wait(); h.stdout() != "done\n" {
		t.Errorf("stdout: got %q, want %q", h.stdout(), "done\n")
	}
	if b, err := os.ReadFile(filepath.Join(dir, "ran")); err != nil || string(b) != "run\n" {
		t.Errorf("the program ran: %q, %v; want once", b, err)
	}
}

func TestFloodIsBounded(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	open := protocol.ExecOpen{Start: spec("sleep", "1000")}
	for range exec.MaxLive {
		open.ID = protocol.NewExecID()
		h := attach(t, m, open, hostOptions{})
		h.waitStarted()
		h.detach()
	}
	h, _ := start(t, m, open.Start)
	if e := h.waitError(); e.Code != protocol.CodeBusy {
		t.Fatalf("start beyond the limit: got %v, want %s", e, protocol.CodeBusy)
	}
	if err := m.Kill(open.ID); err != nil {
		t.Fatal(err)
	}
	if got := <-m.Wait(open.ID); got.Signal != "SIGKILL" {
		t.Errorf("killed: got %+v", got)
	}
	eventually(t, "one start fits again", func() bool { return m.Live() < exec.MaxLive })
	again, _ := start(t, m, spec("true"))
	again.wait()
}

func TestKeepsNewest(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	var ids []protocol.ExecID
	for range exec.MaxKept + 2 {
		id := protocol.NewExecID()
		h := attach(t, m, protocol.ExecOpen{ID: id, Start: shell("echo x")}, hostOptions{noAck: len(ids) != 1})
		h.wait()
		if len(ids) == 1 { // this one alone is acknowledged
			eventually(t, "acknowledged", func() bool { return len(m.Offsets()) == 1 })
		}
		h.detach()
		ids = append(ids, id)
	}
	for i, id := range ids {
		_, kept := <-m.Wait(id)
		if want := i > 1; kept != want {
			t.Errorf("program %d is kept: %v, want %v", i, kept, want)
		}
	}
	if n := len(m.Offsets()); n != exec.MaxKept {
		t.Errorf("offsets of %d programs, want %d", n, exec.MaxKept)
	}
}

// V18: a grandchild in its own session does not survive the time-out.
func TestTimeoutKillsCgroup(t *testing.T) {
	t.Parallel()
	root := cgroupRoot(t)
	m := newManager(t, exec.Config{CgroupRoot: root})
	s := shell("setsid sleep 3217 & setsid sh -c 'trap \"\" TERM INT HUP; sleep 3218; sleep 3219' & sleep 3220")
	s.Timeout = int64(300 * time.Millisecond)
	h, id := start(t, m, s)
	pid := h.waitStarted().PID
	if got, main, ok := m.Of(pid); got != id || main != pid || !ok {
		t.Errorf("Of(%d): got %s %d %v, want %s", pid, got, main, ok, id)
	}
	exit := h.wait()
	if !exit.TimedOut || exit.Status.Signal != "SIGKILL" {
		t.Errorf("exit: got %+v, want a time-out", exit)
	}
	eventually(t, "no process is left", func() bool {
		b, err := os.ReadFile(filepath.Join(root, string(id), "cgroup.procs"))
		return err != nil || len(b) == 0
	})
}

func TestTimeoutKillsGroup(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	s := shell("sleep 3000 & wait")
	s.Timeout = int64(50 * time.Millisecond)
	h, _ := start(t, m, s)
	if exit := h.wait(); !exit.TimedOut || exit.Status.Signal != "SIGKILL" {
		t.Errorf("exit: got %+v, want a time-out", exit)
	}
	quick := shell("exit 3")
	quick.Timeout = int64(time.Hour)
	h, _ = start(t, m, quick)
	if exit := h.wait(); exit.TimedOut || exit.Status.Code != 3 {
		t.Errorf("exit: got %+v, want code 3", exit)
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, id := start(t, m, shell("sleep 1000 & echo $!; wait"))
	h.waitOutput("\n")
	var child int
	for _, c := range strings.TrimSpace(h.stdout()) {
		child = child*10 + int(c-'0')
	}
	if got, main, ok := m.Of(child); got != id || main != h.started.PID || !ok {
		t.Errorf("Of(child): got %s %d %v, want %s %d", got, main, ok, id, h.started.PID)
	}
	if _, _, ok := m.Of(os.Getpid()); ok {
		t.Error("Of finds a program for the test itself")
	}
	h.send(protocol.ExecFrame{Signal: "kill"})
	if got := h.wait().Status.Signal; got != "SIGKILL" {
		t.Errorf("signal: got %q, want SIGKILL", got)
	}
}

func TestOOMScoreIsReset(t *testing.T) {
	root := cgroupRoot(t)
	old, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	write(t, "/proc/self/oom_score_adj", "321")
	t.Cleanup(func() { write(t, "/proc/self/oom_score_adj", string(old)) })
	m := newManager(t, exec.Config{CgroupRoot: root})
	h, _ := start(t, m, shell("sleep 0.2; cat /proc/self/oom_score_adj"))
	if h.wait(); h.stdout() != "0\n" {
		t.Errorf("oom_score_adj: got %q, want 0", h.stdout())
	}
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	m := exec.New(exec.Config{Dir: t.TempDir()})
	h, _ := start(t, m, shell("setsid sleep 5 & cat /dev/zero"))
	h.waitStarted()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	late, _ := start(t, m, spec("true"))
	if e := late.waitError(); e.Code != protocol.CodeUnavailable {
		t.Errorf("start after close: got %v, want %s", e, protocol.CodeUnavailable)
	}
}

func TestCancelledContextEndsServe(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	guest, host := newStream()
	served := make(chan struct{})
	go func() {
		defer close(served)
		m.Serve(ctx, protocol.ExecOpen{ID: protocol.NewExecID(), Start: spec("sleep", "1000")}, guest)
	}()
	var f protocol.ExecFrame
	if err := host.Receive(&f); err != nil || f.Started == nil {
		t.Fatalf("first frame: %+v, %v", f, err)
	}
	cancel()
	select {
	case <-served:
	case <-time.After(patience):
		t.Fatal("Serve goes on after its context ended")
	}
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Not parallel: it counts the descriptors of this process.
func TestFailedStartClosesAll(t *testing.T) {
	m := newManager(t, exec.Config{})
	dir := t.TempDir()
	write(t, dir+"/broken", "\x7fELF and no more")
	if err := os.Chmod(dir+"/broken", 0o755); err != nil {
		t.Fatal(err)
	}
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := 0
	for i := range 3 {
		h, _ := start(t, m, withInput(dir+"/broken"))
		h.waitError()
		<-h.served
		if i == 0 {
			before = open() // the first one starts the runtime's poller
		}
	}
	if got := open(); got != before {
		t.Errorf("%d files are open after failed starts, %d before", got, before)
	}
}
