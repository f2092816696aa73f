package machine_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// held is what a start that fails could leave.
type held struct{ Files, Goroutines, Children, Rooms, Temporary, Users int }

func holds(t *testing.T, m *machine.Machines, dir string) (h held) {
	t.Helper()
	count := func(pattern string) int {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	h = held{Files: count("/proc/self/fd/*"), Goroutines: runtime.NumGoroutine(), Rooms: count(filepath.Join(dir, "vm", "*")),
		Temporary: count(filepath.Join(dir, "tmp", "*")), Users: len(m.Users())}
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range tasks {
		b, _ := os.ReadFile(path) // the thread may have ended
		h.Children += len(strings.Fields(string(b)))
	}
	return h
}

// Starts that fail, of a VMM that gives up at once and of templates and loads,
// leave nothing, however many. Not parallel: it counts what the process has.
func TestFailingStartsLeaveNothing(t *testing.T) {
	program := filepath.Join(t.TempDir(), "qemu")
	script := "#!/bin/sh\n[ \"$1\" = --version ] && { echo QEMU emulator version 7.2.0; exit; }\necho cannot >&2\nexit 1\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(program)), 0o755); err != nil { // machines have users of their own
		t.Fatal(err)
	}
	m, dir := engine(t, qemu.New(qemu.Options{Program: program}))
	kernel := filepath.Join(dir, "kernel")
	if err := os.WriteFile(kernel, []byte("kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	m = m.Kind(machine.Kind{MemoryBytes: 1 << 20, Boot: machine.Boot{Kernel: kernel}})
	start := func(i int) {
		var err error
		if i%10 == 0 {
			_, err = m.Template(t.Context(), func(string) {})
		} else {
			_, err = m.Load(t.Context(), sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: from, Rebase: i%10 == 1})
		}
		if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "cannot") {
			t.Errorf("start %d: %v", i, err)
		}
	}
	for i := range 20 { // what is made once
		start(i)
	}
	if t.Failed() {
		return
	}
	before := holds(t, m, dir)
	var all sync.WaitGroup
	next := make(chan int)
	for range 4 {
		all.Go(func() {
			for i := range next {
				start(i)
			}
		})
	}
	for i := range 500 {
		next <- i
	}
	close(next)
	all.Wait()
	after := holds(t, m, dir)
	for end := time.Now().Add(10 * time.Second); after.Goroutines > before.Goroutines && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		after = holds(t, m, dir)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("500 failing starts have left (-before +after):\n%s", diff)
	}
}

// A start of which a step fails leaves nothing, and a full disk is said to be
// full.
func TestFaultsOfRooms(t *testing.T) {
	cgroup := cgroupDir(t)
	_, dir := engine(t, &driver{})
	d := &driver{}
	m := open(t, machine.Options{Driver: d, Dir: dir, Cgroup: cgroup}).Kind(machine.Kind{MemoryBytes: 1 << 20})
	for _, tt := range []struct {
		label string
		nth   int
	}{{"machine.record.write", 1}, {"machine.record.rename", 1}, {"machine.cgroup.make", 1}, {"machine.record.write", 2}, {"machine.record.rename", 2}} {
		if cgroup == "" && tt.label == "machine.cgroup.make" {
			continue
		}
		clear := fault.Set(tt.label, tt.nth, fault.Error(syscall.ENOSPC))
		v, err := m.Load(t.Context(), sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: from})
		clear()
		if !errors.Is(err, syscall.ENOSPC) || tt.label != "machine.cgroup.make" && protocol.CodeOf(err) != protocol.CodeDiskFull {
			t.Errorf("%s %d: %v, %v", tt.label, tt.nth, v, err)
		}
		if len(m.Users()) > 0 || d.alive.Load() > 0 || len(left(t, dir)) > 0 {
			t.Errorf("%s %d: left: users %v, %d machines, %v", tt.label, tt.nth, m.Users(), d.alive.Load(), left(t, dir))
		}
	}
	if v, err := m.Load(t.Context(), sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: from}); err != nil {
		t.Error(err)
	} else if err := v.Kill(); err != nil {
		t.Error(err)
	}
}
