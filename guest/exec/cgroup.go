package exec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// cgroup is the version 2 cgroup of one program; the empty path is none.
type cgroup string

func makeCgroup(root string, id protocol.ExecID) (cgroup, *os.File, error) {
	if root == "" {
		return "", nil, nil
	}
	dir := filepath.Join(root, string(id))
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return "", nil, protocol.Errorf(protocol.CodeBusy, "processes of an earlier program %s still run", id)
		}
		return "", nil, fmt.Errorf("make cgroup: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("open cgroup: %w", err), os.Remove(dir))
	}
	return cgroup(dir), f, nil
}

// kill kills every process in the cgroup, also one that forks meanwhile, is
// frozen or has made a session of its own.
func (c cgroup) kill() error {
	if err := os.WriteFile(filepath.Join(string(c), "cgroup.kill"), []byte("1"), 0); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// remove removes the cgroup and those that the program made in it, if no
// process is left.
func (c cgroup) remove() error {
	if c == "" {
		return nil
	}
	return removeTree(string(c))
}

func removeTree(dir string) error {
	below, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range below {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if rm := os.Remove(dir); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("remove cgroup: %w", rm))
	}
	return err
}

// frozen tells that root is frozen. A process born into a frozen cgroup stops
// before its execve, and this process with it.
func frozen(root string) bool {
	if root == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(root, "cgroup.freeze"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// resetOOM makes a new program an ordinary candidate for the kernel's OOM
// killer, from which this process may be exempt. A pass over the cgroup that
// finds nothing to change proves that no process born before the change of its
// parent is left.
func resetOOM(c cgroup, pid int) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || strings.TrimSpace(string(own)) == "0" {
		return
	}
	setOOM(strconv.Itoa(pid))
	for changed := c != ""; changed; {
		changed = false
		b, err := os.ReadFile(filepath.Join(string(c), "cgroup.procs"))
		if err != nil {
			return
		}
		for p := range strings.FieldsSeq(string(b)) {
			changed = setOOM(p) || changed
		}
	}
}

// setOOM tells whether there was something to change.
func setOOM(pid string) bool {
	file := "/proc/" + pid + "/oom_score_adj"
	b, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(b)) == "0" {
		return false
	}
	return os.WriteFile(file, []byte("0"), 0) == nil
}

// cgroupNames are the parts of the path of a process's cgroup.
func cgroupNames(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return strings.Split(path, "/")
		}
	}
	return nil
}

// sessionOf is the session of a process, 0 when there is no such process.
func sessionOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name in parentheses may hold anything; the fields after it are
	// state, parent, group, session.
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 4 {
		return 0
	}
	n, _ := strconv.Atoi(fields[3])
	return n
}
