package integration_test

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/internal/fault"
)

// TestEveryStepHasALabel looks at the system calls of runs: each fsync, each
// rename, each command to a VMM and each transaction of the journal follows
// the passing of its own fault label, and no label is passed for nothing.
func TestEveryStepHasALabel(t *testing.T) {
	t.Parallel()
	needStrace(t)

	t.Run("first run", func(t *testing.T) {
		state := shortDir(t)
		useKernelAndRoot(t, state)
		traced(t, options{state: state, flags: []string{"--keep"}}, "python3", "-c", snapshotting)
		list := listed(t, options{state: state})
		if len(list) != 1 {
			t.Fatalf("%d checkpoints are kept, want 1", len(list))
		}
		traced(t, options{state: state, args: []string{"run", "--from", string(list[0].ID)}})
		traced(t, options{state: state, args: []string{"checkpoint", "rm", string(list[0].ID)}})
	})
	t.Run("every call", func(t *testing.T) {
		o := faulty(privateState(t), "")
		passed := traced(t, o, python(t, "faults.py")...)
		// The table is what the matrices below promise to stop at.
		for _, label := range slices.Sorted(maps.Keys(passed)) {
			// The first run after an image was made stamps it, and not every
			// host has cgroups.
			if label != "image:stamp.rename" && label != "machine.cgroup.make" && !slices.Contains(allSteps, label) {
				t.Errorf("label %s is passed and not in allSteps", label)
			}
		}
		for _, label := range allSteps {
			if passed[label] == 0 {
				t.Errorf("label %s is in allSteps and not passed", label)
			}
		}
	})
}

const snapshotting = `
import ratoon
print(ratoon.snapshot().restored)
`

// needStrace skips without a strace that traces the host and not its VMMs.
func needStrace(t testing.TB) {
	t.Helper()
	if out, err := exec.Command("strace", "-D", "-f", "-b", "execve", "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		t.Skipf("strace: %v %s: run `make setup`, and where ptrace is not allowed, allow it", err, out)
	}
}

// useKernelAndRoot shares of the cache what takes minutes to make.
func useKernelAndRoot(t testing.TB, dir string) {
	t.Helper()
	shared := stateDir(t)
	warm(t, shared)
	images := filepath.Join(dir, "cache", "images")
	if err := os.MkdirAll(images, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"kernel", "builtin"} {
		if err := os.Symlink(filepath.Join(shared, "cache", "images", kind), filepath.Join(images, kind)); err != nil {
			t.Fatal(err)
		}
	}
}

// steps are the system calls that can be one, and those needed to tell.
const stepCalls = "fsync,fdatasync,sync,syncfs,sync_file_range,msync,rename,renameat,renameat2," +
	"write,writev,pwrite64,pwritev,pwritev2,ftruncate,fallocate,sendto,sendmsg,sendmmsg,connect"

// traced runs a command and holds its system calls to its labels, which it
// returns. Each label passed is a line that the command writes to a file, so
// it stands in the trace before its step.
func traced(t testing.TB, o options, argv ...string) map[string]int {
	t.Helper()
	dir := t.TempDir()
	labels, trace := filepath.Join(dir, "labels"), filepath.Join(dir, "trace")
	o.wrap = []string{"strace", "-D", "-f", "-b", "execve", "-y", "-q", "-s", "80", "-e", "trace=" + stepCalls, "-o", trace}
	o.env = append(slices.Clone(o.env), fault.EnvTrace+"="+labels)
	succeed(t, o, argv...)

	f := openTrace(t, trace)
	defer f.Close()
	l := newLedger(labels)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		l.line(lines.Text())
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, problem := range append(l.problems, l.unused()...) {
		t.Error(problem)
	}
	t.Logf("%d labels passed, %d steps: %v", len(l.passed), l.steps, l.kinds)
	return l.passed
}

// openTrace waits until strace, which is nobody's child, has written all.
func openTrace(t testing.TB, path string) *os.File {
	t.Helper()
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		if len(users(filepath.Dir(path))) == 0 {
			break
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var (
	callLine   = regexp.MustCompile(`^(\d+) +(\w+)\((.*)`)
	onFile     = regexp.MustCompile(`^\d+<([^>]*)>(?:, (.*))?`)
	qmpConnect = regexp.MustCompile(`^\d+<(socket:\[\d+\])>, \{sa_family=AF_UNIX, sun_path="[^"]*/qmp\.sock"`)
	qmpCommand = regexp.MustCompile(`\{\\"execute\\":\\"([\w-]+)\\"`)
	atStart    = regexp.MustCompile(`, (0|4096)(\)| <unfinished)`) // of the journal: a meta page
)

// ledger follows a trace. A goroutine may go on in another thread between its
// label and its step, so steps are not looked for by thread: a label passed
// allows one step of its kind, and what is left at the end is an error too.
// Transactions of the journal are one after another: from a label up to the
// next one everything written to it is one transaction, of one meta page.
type ledger struct {
	labelFile string
	passed    map[string]int
	last      map[string]string // label by thread, to tell where it was
	open      map[string][]string
	qmp       map[string]bool // sockets
	journal   string          // label of the transaction that may be written
	metas     int
	steps     int
	kinds     map[string]int
	problems  []string
}

func newLedger(labelFile string) *ledger {
	return &ledger{labelFile: labelFile, passed: map[string]int{}, last: map[string]string{}, open: map[string][]string{},
		qmp: map[string]bool{}, kinds: map[string]int{}}
}

// line takes calls at their beginning; where strace resumes one it is known.
func (l *ledger) line(s string) {
	m := callLine.FindStringSubmatch(s)
	if m == nil {
		return
	}
	thread, call, args := m[1], m[2], m[3]
	if strings.HasPrefix(call, "rename") {
		l.step("rename", thread, s)
		return
	}
	if call == "connect" {
		if m := qmpConnect.FindStringSubmatch(args); m != nil {
			l.qmp[m[1]] = true
		}
		return
	}
	file, rest := "", ""
	if m := onFile.FindStringSubmatch(args); m != nil {
		file, rest = m[1], m[2]
	}
	switch {
	case file == l.labelFile:
		label, _, _ := strings.Cut(strings.TrimPrefix(rest, `"`), `\n`)
		l.pass(label, thread)
	case filepath.Base(file) == "journal.db":
		l.journalStep(call, thread, rest, s)
	case strings.Contains(call, "sync"):
		l.step("fsync", thread, s)
	case l.qmp[file]:
		command := "no command"
		if m := qmpCommand.FindStringSubmatch(rest); m != nil {
			command = m[1]
		}
		l.step("qmp."+command, thread, s)
	}
}

// kindOf is the kind of step that a label announces; "" for others.
func kindOf(label string) string {
	switch {
	case strings.HasPrefix(label, "qmp."):
		return label
	case strings.HasSuffix(label, "fsync"):
		return "fsync"
	case strings.HasSuffix(label, "rename"):
		return "rename"
	}
	return ""
}

func (l *ledger) pass(label, thread string) {
	l.passed[label]++
	l.last[thread] = label
	if name, after := strings.CutSuffix(label, ".after"); after {
		if l.journal != name || l.metas != 1 {
			l.problems = append(l.problems, fmt.Sprintf("%s is passed after %d transactions that %q allowed", label, l.metas, l.journal))
		}
		l.journal = ""
	} else if strings.HasPrefix(label, "journal.") {
		l.journal, l.metas = label, 0
	}
	if kind := kindOf(label); kind != "" {
		l.open[kind] = append(l.open[kind], label)
	}
}

func (l *ledger) step(kind, thread, line string) {
	l.steps++
	l.kinds[kind]++
	if n := len(l.open[kind]); n > 0 {
		l.open[kind] = l.open[kind][:n-1]
		return
	}
	l.problems = append(l.problems, fmt.Sprintf("%s without a label; this thread has passed %q last\n\t%s", kind, l.last[thread], line))
}

func (l *ledger) journalStep(call, thread, rest, line string) {
	l.steps++
	l.kinds["journal"]++
	if strings.Contains(call, "write") && atStart.MatchString(rest) {
		l.metas++
	}
	if l.journal == "" || l.metas > 1 {
		l.problems = append(l.problems, fmt.Sprintf("write of the journal without a label; this thread has passed %q last\n\t%s", l.last[thread], line))
	}
}

// unused are labels without their step.
func (l *ledger) unused() (out []string) {
	for kind, labels := range l.open {
		if len(labels) > 0 {
			out = append(out, fmt.Sprintf("labels without a %s: %v", kind, labels))
		}
	}
	return out
}

// TestLedger holds that the trace of a step without a label is refused.
func TestLedger(t *testing.T) {
	t.Parallel()
	const trace = `7 write(5</l>, "a.fsync\n", 8) = 8
8 fsync(6</s/file>) = 0
7 write(5</l>, "journal.start\n", 14 <unfinished ...>
7 <... write resumed>) = 14
7 pwrite64(9</s/journal.db>, "x"..., 4096, 16384) = 4096
7 fdatasync(9</s/journal.db>) = 0
7 pwrite64(9</s/journal.db>, "x"..., 4096, 4096) = 4096
7 fdatasync(9</s/journal.db>) = 0
7 write(5</l>, "journal.start.after\n", 20) = 20
7 connect(3<socket:[12]>, {sa_family=AF_UNIX, sun_path="/proc/self/fd/4/qmp.sock"}, 27) = 0
7 write(5</l>, "qmp.stop\n", 9) = 9
8 sendmsg(3<socket:[12]>, {msg_name=NULL, msg_namelen=0, msg_iov=[{iov_base="{\"execute\":\"stop\",\"id\":1}", iov_len=37}]}, 0) = 37
7 write(5</l>, "a.rename\n", 9) = 9
7 renameat(AT_FDCWD</>, "/a", AT_FDCWD</>, "/b" <unfinished ...>
`
	check := func(extra string) []string {
		l := newLedger("/l")
		for line := range strings.Lines(trace + extra) {
			l.line(strings.TrimSuffix(line, "\n"))
		}
		return append(l.problems, l.unused()...)
	}
	if got := check(""); len(got) > 0 {
		t.Errorf("labelled: %v", got)
	}
	for _, extra := range []string{
		`8 fsync(6</s/file>) = 0`,
		`8 renameat(AT_FDCWD</>, "/a", AT_FDCWD</>, "/b") = 0`,
		`8 pwrite64(9</s/journal.db>, "x"..., 4096, 16384) = 4096`,
		`8 fdatasync(9</s/journal.db>) = 0`,
		`8 write(3<socket:[12]>, "{\"execute\":\"stop\",\"id\":1}", 20) = 20`,
		`8 write(5</l>, "a.fsync\n", 8) = 8`,
		"8 write(5</l>, \"qmp.stop\\n\", 9) = 9\n8 write(3<socket:[12]>, \"{\\\"execute\\\":\\\"cont\\\",\\\"id\\\":1}\", 20) = 20",
		"8 write(5</l>, \"journal.a\\n\", 9) = 9\n8 pwrite64(9</s/journal.db>, \"x\"..., 4096, 0) = 4096\n8 pwrite64(9</s/journal.db>, \"x\"..., 4096, 4096) = 4096",
		"8 write(5</l>, \"journal.a.after\\n\", 15) = 15",
	} {
		if got := check(extra); len(got) == 0 {
			t.Errorf("not refused:\n%s", extra)
		}
	}
}
