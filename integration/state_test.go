package integration_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// shortDir is a directory of the test's own.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// privateState is a state directory that shares the cache of the common one.
func privateState(t testing.TB) string {
	t.Helper()
	dir := shortDir(t)
	useCache(t, dir)
	return dir
}

func useCache(t testing.TB, dir string) {
	t.Helper()
	shared := stateDir(t)
	warm(t, shared)
	if err := os.Symlink(filepath.Join(shared, "cache"), filepath.Join(dir, "cache")); err != nil {
		t.Fatal(err)
	}
}

func needRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("%s: run as root", why)
	}
}

// TestBadInput: one line, a remedy, and the documented status.
func TestBadInput(t *testing.T) {
	t.Parallel()
	state := privateState(t)
	const unknown = "cp-aaaaaaaaaaaaaaaa"
	for _, c := range []struct {
		args   string
		env    string
		status int
		stderr string
	}{
		{"fly", "", 2, `unknown command "fly"`},
		{"run", "", 2, "want a command"},
		{"run --wings -- true", "", 2, "--wings"},
		{"run --memory lots -- true", "", 2, "lots"},
		{"run --memory 1M -- true", "", 2, "128M"},
		{"run --cpus 0 -- true", "", 2, "--cpus"},
		{"run --max-depth -1 -- true", "", 2, "negative"},
		{"run --env =x -- true", "", 2, "NAME"},
		{"run --llm nonsense -- true", "", 2, "nonsense"},
		{"run --llm scripted:/nonexistent -- true", "", 2, "/nonexistent"},
		{"run --from ../../etc", "", 2, "../../etc"},
		{"run --from " + unknown, "", 2, unknown},
		{"run --from " + unknown + " -- true", "", 2, "no command"},
		{"checkpoint show", "", 2, "arg"},
		{"checkpoint show ../x", "", 2, "../x"},
		{"checkpoint rm " + unknown, "", 2, unknown},
		{"checkpoint ls -o xml", "", 2, "xml"},
		{"tree nonsense", "", 2, "nonsense"},
		{"tree sb-aaaaaaaaaaaaaaaa", "", 2, "sb-aaaaaaaaaaaaaaaa"},
		{"run --state-dir /proc/nowhere -- true", "", 2, "/proc/nowhere"},
		{"run -- true", "RATOON_KERNEL=/nonexistent", 125, "/nonexistent"},
		{"run -- true", "RATOON_AGENTD=/nonexistent", 125, "make build"},
		{"run -- true", "PATH=/nonexistent", 125, "qemu"},
	} {
		t.Run(c.args+c.env, func(t *testing.T) {
			o := options{state: state, args: strings.Fields(c.args)}
			if c.env != "" {
				o.env = []string{c.env}
			}
			r := run(t, o)
			if r.status != c.status || !strings.Contains(r.stderr, c.stderr) || r.stdout != "" {
				t.Errorf("status %d: %s%s; want %d and %q", r.status, r.stdout, r.stderr, c.status, c.stderr)
			}
			lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
			if len(lines) > 2 || !strings.HasPrefix(lines[0], "ratoon: ") || len(lines) == 2 && !strings.HasPrefix(lines[1], "  remedy: ") {
				t.Errorf("not one line and a remedy:\n%s", r.stderr)
			}
		})
	}
	if left, err := os.ReadDir(filepath.Join(state, "runs")); err != nil || len(left) > 0 {
		t.Errorf("%v, runs left behind: %v", err, left)
	}
}

// trying takes a snapshot for each line it is told, which may fail, and lives.
const trying = `
import ratoon, sys
print("ready", flush=True)
for line in sys.stdin:
    try:
        ratoon.snapshot()
        print("made", flush=True)
    except ratoon.RatoonError as e:
        print(e.code, flush=True)
print(ratoon.whoami().node, len(ratoon.tree().checkpoints))
`

// smallDisk mounts a file system and makes a state directory of it.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	needRoot(t, "mounts a small file system")
	dir := shortDir(t)
	if err := syscall.Mount("ratoon-test", dir, "tmpfs", 0, "mode=711,size="+size); err != nil {
		t.Skipf("mount a tmpfs: %v: run where mounts are allowed", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	useCache(t, dir)
	return dir
}

// TestFullDisk: a snapshot that finds no space is a typed error, the machine
// goes on, and the next one is made when there is space again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "512M")
	in, tell := io.Pipe()
	r := start(t, options{state: dir, input: in}, "python3", "-c", trying)
	r.await(t, "ready")
	filler := filepath.Join(dir, "filler")
	if err := fill(filler); err != nil {
		t.Fatal(err)
	}
	io.WriteString(tell, "1\n")
	r.await(t, "disk_full\n")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	io.WriteString(tell, "2\n")
	r.await(t, "made\n")
	tell.Close()
	res := r.wait(t)
	if want := "ready\ndisk_full\nmade\n0 1\n"; res.status != 0 || res.stdout != want {
		t.Errorf("status %d\n%s%swant\n%s", res.status, res.stdout, res.stderr, want)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "runs")); len(left) > 0 {
		t.Errorf("runs left behind: %v", left)
	}
}

// fill leaves 1 MiB of a file system free.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return err
	}
	return syscall.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-1<<20)
}

// TestNoDisk: without space for anything a run says so.
func TestNoDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "64k")
	r := run(t, options{state: dir}, "true")
	if r.status != 125 || !strings.HasPrefix(r.stderr, "ratoon: ") || !strings.Contains(r.stderr, "no space left") {
		t.Errorf("status %d\n%s%s", r.status, r.stdout, r.stderr)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "runs")); len(left) > 0 {
		t.Errorf("runs left behind: %v", left)
	}
}

// TestLongPath: sockets have short paths wherever the state directory is.
func TestLongPath(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	for range 3 {
		dir = filepath.Join(dir, strings.Repeat("long", 20))
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	useCache(t, dir)
	if out := succeed(t, options{state: dir, stdin: "1\n"}, "python3", "-c", trying); out != "ready\nmade\n0 1\n" {
		t.Errorf("output %q", out)
	}
}

// TestOrdinaryUser runs as a user who may do nothing special.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	needRoot(t, "makes a user")
	const name = "ratoon-test"
	if out, err := exec.Command("useradd", "--system", "--no-create-home", "--shell", "/bin/sh", name).CombinedOutput(); err != nil {
		t.Fatalf("useradd: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("userdel", name).CombinedOutput(); err != nil {
			t.Errorf("userdel: %v\n%s", err, out)
		}
	})
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)

	// Images are big: they are the same files, and only the directories the
	// user's own.
	dir := shortDir(t)
	shared := stateDir(t)
	warm(t, shared)
	script := `set -e
mkdir -p "$2/state/cache" "$2/bin"
cp -rl "$1/cache/images" "$2/state/cache/" 2>/dev/null || cp -r "$1/cache/images" "$2/state/cache/"
find "$2/state" -name '*.lock' -delete
cp "$3/ratoon" "$3/agentd" "$2/bin/"
find "$2" -type d -exec chown "$4" {} +`
	if out, err := exec.Command("sh", "-c", script, "sh", shared, dir, filepath.Dir(command(t)), u.Uid+":"+u.Gid).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o := options{state: filepath.Join(dir, "state"), command: filepath.Join(dir, "bin", "ratoon"), env: []string{"HOME=/nonexistent", "RATOON_AGENTD=" + filepath.Join(dir, "bin", "agentd")},
		user: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if r := run(t, o, "true"); r.status != 0 {
		t.Fatalf("status %d\n%s", r.status, r.stderr)
	}
	r := start(t, o, "python3", "-c", hanging)
	r.await(t, "branched")
	pids := r.machines(t)
	if len(pids) != 3 {
		t.Errorf("%d machines run, want 3", len(pids))
	}
	for _, pid := range pids {
		s := status(t, pid)
		if id := strings.Fields(s["Uid"]); id[0] != u.Uid || s["Seccomp"] != "2" || s["NoNewPrivs"] != "1" || s["CapEff"] != "0000000000000000" {
			t.Errorf("machine %d: user %v, seccomp %s, no new privileges %s, capabilities %s", pid, id, s["Seccomp"], s["NoNewPrivs"], s["CapEff"])
		}
	}
	r.cancel()
	<-r.done
	o.stdin = "1\n"
	if out := succeed(t, o, "python3", "-c", trying); out != "ready\nmade\n0 1\n" {
		t.Errorf("output %q", out)
	}
}

// traces lists what runs could leave behind outside their state directory.
// It is run where /tmp, /run and /dev/shm belong to the test alone.
const traces = `set -e
mount --bind "$1" /mnt
mount --bind "$2" /media
for d in /tmp /run /dev/shm; do mount -t tmpfs none $d; done
look() {
	find /tmp /run /dev/shm
	cat /proc/self/mountinfo
	grep /mnt /proc/net/unix || true
	find /sys/fs/cgroup -name '*ratoon*' 2>/dev/null || true
	ls /mnt/runs
}
shift 2
look >/proc/self/fd/3
RATOON_STATE_DIR=/mnt RATOON_AGENTD=/media/agentd /media/ratoon "$@" >/dev/null
look >/proc/self/fd/4
`

// TestNothingIsLeft compares the host before and after a run.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	needRoot(t, "has directories of its own mounted")
	dir := shortDir(t)
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o711); err != nil {
		t.Fatal(err)
	}
	// The cache as a mount: a link could lead into the hidden /tmp.
	shared := stateDir(t)
	warm(t, shared)
	if err := os.Mkdir(filepath.Join(state, "cache"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(filepath.Join(shared, "cache"), filepath.Join(state, "cache"), "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("mount the cache: %v: run where mounts are allowed", err)
	}
	t.Cleanup(func() { syscall.Unmount(filepath.Join(state, "cache"), 0) })
	if err := os.Mkdir(filepath.Join(state, "runs"), 0o711); err != nil {
		t.Fatal(err)
	}
	var files [2]*os.File
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	before := processes(t)
	script := strings.Replace(traces, `mount --bind "$1"`, `mount --rbind "$1"`, 1)
	args := []string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", state, filepath.Dir(command(t)), "run", "--"}
	cmd := exec.Command("unshare", append(args, python(t, "scenarios.py", "snapshot", "branch", "adopt")...)...)
	cmd.ExtraFiles = files[:]
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(f *os.File) []string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(b), "\n")
	}
	had := read(files[0])
	for _, line := range read(files[1]) {
		if !slices.Contains(had, line) {
			t.Errorf("left behind: %s", line)
		}
	}
	for _, pid := range processes(t) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && !slices.Contains(before, pid) && strings.Contains(string(b), "/mnt/runs") {
			t.Errorf("left behind: process %d %q", pid, b)
		}
	}
}
