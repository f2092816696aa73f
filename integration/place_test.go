package integration_test

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// place is a host of a test's own: a state directory and, for root, a mount
// namespace in which /tmp, /run and /dev/shm are empty and nobody else's. What
// runs leave there can be told.
type place struct {
	state  string // as the test sees it
	in     options
	holder int // keeps the namespace; 0: there is none
	had    []string
}

// holding makes the namespace and keeps it until its input ends.
const holding = `set -e
mount --bind "$1" /mnt
mount --bind "$2" /mnt/cache
mount --bind "$3" /media
for d in /tmp /run /dev/shm; do mount -t tmpfs none $d; done
echo ready
exec cat
`

func newPlace(t testing.TB) *place {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("not root: what is left outside of the state directory is not looked for")
		state := privateState(t)
		return &place{state: state, in: options{state: state}}
	}
	shared := stateDir(t)
	warm(t, shared)
	dir := shortDir(t)
	for _, sub := range []string{"cache", "runs"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", holding, "sh", dir, filepath.Join(shared, "cache"), filepath.Dir(command(t)))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Skipf("make a mount namespace: %v: run where mounts are allowed", err)
	}
	p := &place{state: dir, holder: cmd.Process.Pid, in: options{
		state: "/mnt", command: "/media/ratoon", env: []string{"RATOON_AGENTD=/media/agentd"},
		wrap: []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", cmd.Process.Pid), "--"},
	}}
	p.had = p.look(t)
	return p
}

// run runs a command line of ratoon there.
func (p *place) run(t testing.TB, args ...string) result {
	t.Helper()
	o := p.in
	o.args = args
	return run(t, o)
}

// look lists processes, mounts, sockets, cgroups and files outside of the
// state directory.
func (p *place) look(t testing.TB) (found []string) {
	t.Helper()
	root := fmt.Sprintf("/proc/%d/root", p.holder)
	for _, dir := range []string{"/tmp", "/run", "/dev/shm"} {
		err := filepath.WalkDir(root+dir, func(path string, _ fs.DirEntry, err error) error {
			found = append(found, strings.TrimPrefix(path, root))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{fmt.Sprintf("/proc/%d/mountinfo", p.holder), "/proc/net/unix"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasSuffix(path, "mountinfo") || strings.Contains(line, " /mnt/") {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.holder))
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range processes(t) {
		if ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); ns == own && pid != p.holder {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			found = append(found, fmt.Sprintf("process %d %q", pid, b))
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*ratoon*")
	if err != nil {
		t.Fatal(err)
	}
	return append(found, groups...)
}

// awaitAsBefore waits until nothing is there that was not at first.
func (p *place) awaitAsBefore(t testing.TB) {
	t.Helper()
	awaitNobody(t, p.state)
	if p.holder == 0 {
		return
	}
	var left []string
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
		left = slices.DeleteFunc(p.look(t), func(s string) bool { return slices.Contains(p.had, s) })
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}
