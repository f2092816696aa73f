package integration_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// hanging is a program whose copies stay: three machines, until it reads a
// line.
const hanging = `
import ratoon, sys, time
b = ratoon.branch(2)
if b.index is not None:
    time.sleep(3600)
print("branched", flush=True)
time.sleep(3600)
`

// TestSandboxed looks at the machines' processes from the host.
func TestSandboxed(t *testing.T) {
	t.Parallel()
	r := start(t, options{}, "python3", "-c", hanging)
	r.await(t, "branched")
	pids := r.machines(t)
	if len(pids) != 3 {
		t.Fatalf("%d machines run, want 3", len(pids))
	}
	users := map[string]int{}
	for _, pid := range pids {
		s := status(t, pid)
		for name, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0000000000000000", "CapPrm": "0000000000000000"} {
			if s[name] != want {
				t.Errorf("machine %d: %s is %s, want %s", pid, name, s[name], want)
			}
		}
		ids := strings.Fields(s["Uid"])
		if ids[0] == "0" || ids[0] != ids[1] || ids[0] != ids[2] {
			t.Errorf("machine %d runs as %v", pid, ids)
		}
		if groups := strings.TrimSpace(s["Groups"]); os.Geteuid() == 0 && groups != "" && groups != strings.Fields(s["Gid"])[0] {
			t.Errorf("machine %d is in groups %s", pid, groups)
		}
		if other, shared := users[ids[0]]; shared && os.Geteuid() == 0 {
			t.Errorf("machines %d and %d are one user, %s", other, pid, ids[0])
		}
		users[ids[0]] = pid
		checkWrites(t, pid, ids[0])
	}
}

// checkWrites tries to change what several machines use, as one of them would.
func checkWrites(t *testing.T, pid int, user string) {
	uid, err := strconv.Atoi(user)
	if err != nil {
		t.Fatal(err)
	}
	bases := 0
	targets, err := filepath.Glob(filepath.Join(stateDir(t), "cache", "*", "bases", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range openFiles(t, pid) {
		if f.sealed {
			bases++
			targets = append(targets, fmt.Sprintf("/proc/%d/fd/%d", pid, descriptor(t, pid, f.inode)))
		}
		if f.writable && !f.sealed && strings.HasPrefix(f.path, "/") && !strings.HasPrefix(f.path, "/memfd:") && !strings.Contains(f.path, "/vm/") {
			t.Errorf("machine %d can write %s", pid, f.path)
		}
	}
	if len(targets) == 0 {
		t.Errorf("machine %d has no base that could be tried", pid)
	}
	for _, path := range targets {
		// A shell that does not come from Ratoon has less in its way.
		cmd := exec.Command("sh", "-c", `exec 3<>"$1" && head -c 1 /dev/zero >&3`, "sh", path)
		cmd.Dir = "/"
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		} else if !strings.HasPrefix(path, "/proc/") {
			continue // the caller's own files
		}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("user %d can write %s: %s", uid, path, out)
		}
	}
}

// descriptor finds the number of an open file.
func descriptor(t *testing.T, pid int, want inode) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		st := syscall.Stat_t{}
		if syscall.Stat(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()), &st) == nil && (inode{st.Dev, st.Ino}) == want {
			n, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("machine %d has closed its base", pid)
	return -1
}
