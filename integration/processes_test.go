package integration_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// machines lists the VMM processes of a running command.
func (r *running) machines(t testing.TB) []int {
	t.Helper()
	return childrenOf(t, r.cmd.Process.Pid)
}

// childrenOf lists the QEMU processes that a process has started.
func childrenOf(t testing.TB, parent int) (pids []int) {
	t.Helper()
	for _, pid := range processes(t) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		name, rest, ok := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest)
		if ok && len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(parent) && strings.Contains(name, "qemu") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func processes(t testing.TB) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// status reads fields of /proc/PID/status.
func status(t testing.TB, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		all[name] = strings.TrimSpace(value)
	}
	return all
}

// inode names a file of the host.
type inode struct{ dev, ino uint64 }

// opened is a regular file that a process has open.
type opened struct {
	inode
	path     string
	writable bool
	sealed   bool
}

// openFiles lists the regular files among a process's descriptors.
func openFiles(t testing.TB, pid int) (files []opened) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		st := syscall.Stat_t{}
		if syscall.Stat(path, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		target, _ := os.Readlink(path)
		o := opened{inode: inode{st.Dev, st.Ino}, path: target}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, e.Name()))
		if err != nil {
			continue
		}
		for line := range bytes.Lines(info) {
			if value, ok := bytes.CutPrefix(line, []byte("flags:")); ok {
				flags, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 8, 64)
				if err != nil {
					t.Fatal(err)
				}
				o.writable = flags&syscall.O_ACCMODE != syscall.O_RDONLY
			}
		}
		if f, err := os.Open(path); err == nil {
			seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
			o.sealed = err == nil && seals&unix.F_SEAL_WRITE != 0
			f.Close()
		}
		files = append(files, o)
	}
	return files
}

// sharedMappings lists the files that a process maps shared and writable.
func sharedMappings(t testing.TB, pid int) (files []string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) > 5 && strings.HasPrefix(fields[1], "rw") && strings.HasSuffix(fields[1], "s") {
			files = append(files, fields[3]+" "+fields[4]+" "+fields[5])
		}
	}
	return files
}
