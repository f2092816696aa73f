package machine_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// sleeper is a process that only a kill ends, of that user; -1: the test's.
func sleeper(t *testing.T, uid int) (p vmm.Process, wait func() syscall.WaitStatus) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if uid >= 0 {
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
	})
	p.PID = cmd.Process.Pid
	var err error
	if p.StartTime, err = memory.StartTime(p.PID); err != nil {
		t.Fatal(err)
	}
	if p.Program, err = memory.Program(p.PID); err != nil {
		t.Fatal(err)
	}
	return p, func() syscall.WaitStatus {
		<-done
		return cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
}

func alive(p vmm.Process) bool { return memory.Alive(p.PID, p.StartTime) }

// The pid of a record may be another process by now.
func TestKillMachine(t *testing.T) {
	t.Parallel()
	p, wait := sleeper(t, -1)
	later, other := p, p
	later.StartTime++
	other.Program += "x"
	for name, err := range map[string]error{
		"another start time": machine.KillMachine(t.Context(), later, -1),
		"another program":    machine.KillMachine(t.Context(), other, -1),
		"another user":       machine.KillMachine(t.Context(), p, os.Geteuid()+1),
		"no machine's user":  machine.KillUser(t.Context(), os.Geteuid()),
	} {
		if err != nil || !alive(p) {
			t.Fatalf("%s: killed, %v", name, err)
		}
	}
	if err := machine.KillMachine(t.Context(), p, -1); err != nil {
		t.Error(err)
	}
	if alive(p) {
		t.Error("it lives")
	}
	if st := wait(); st.Signal() != syscall.SIGKILL {
		t.Errorf("ended by %v", st)
	}
	if err := machine.KillMachine(t.Context(), p, -1); err != nil {
		t.Errorf("what is gone: %v", err)
	}
}

// Sweep ends the process of a record and removes its directory; SweepAll does
// it for all that no sandbox has adopted.
func TestSweep(t *testing.T) {
	t.Parallel()
	m, dir := engine(t, &driver{})
	own, wait := sleeper(t, -1)
	recycled, _ := sleeper(t, -1)
	old, _ := sleeper(t, -1)
	last, waitLast := sleeper(t, -1)
	ids := make([]protocol.VMID, 6)
	for i := range ids {
		ids[i] = protocol.NewVMID()
	}
	boot := m.Boot()
	at := recycled
	at.StartTime++
	for _, r := range []machine.Record{
		{ID: ids[0], Boot: boot, UID: -1, Process: own},
		{ID: ids[1], Boot: boot, UID: -1, Process: at},
		{ID: ids[2], Boot: "another", UID: -1, Process: old},
		{ID: ids[3], Boot: boot, UID: -1}, // its process was not noted, or never began
		{ID: ids[4], Boot: boot, UID: -1, Process: last},
	} {
		machine.LeaveRoom(t, dir, r)
	}
	if err := os.MkdirAll(filepath.Join(dir, "vm", string(ids[5])), 0o700); err != nil {
		t.Fatal(err)
	}
	e := open(t, machine.Options{Driver: &driver{}, Dir: dir})
	for _, id := range append(slices.Clone(ids[:4]), protocol.NewVMID()) {
		for range 2 {
			if err := e.Sweep(t.Context(), sandbox.VMRecord{ID: id}); err != nil {
				t.Error(err)
			}
		}
	}
	wait()
	if !alive(recycled) || !alive(old) {
		t.Error("killed a process of another start time, or of another boot")
	}
	if got := left(t, dir); len(got) != 2 || !alive(last) {
		t.Errorf("left: %v", got)
	}
	// Without a record nothing has begun, and no journal may know of it.
	if err := e.Recover(t.Context()); err != nil || len(left(t, dir)) != 1 {
		t.Errorf("Recover: %v, left %v", err, left(t, dir))
	}
	if err := e.SweepAll(t.Context()); err != nil || len(left(t, dir)) > 0 {
		t.Errorf("SweepAll: %v, left %v", err, left(t, dir))
	}
	waitLast()
}

// What an earlier process had no time to note is found by its user; what this
// process has is left alone.
func TestSweepByUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives machines users of their own: run as root")
	}
	m, dir := engine(t, &driver{})
	id := protocol.NewVMID()
	uid, err := machine.FreeUID(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, wait := sleeper(t, uid)
	machine.LeaveRoom(t, dir, machine.Record{ID: id, Boot: m.Boot(), UID: uid, Template: true})
	e := open(t, machine.Options{Driver: &driver{}, Dir: dir}).Kind(machine.Kind{MemoryBytes: 1 << 20})
	v, err := e.Load(t.Context(), sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: from})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Recover(t.Context()); err != nil {
		t.Error(err)
	}
	if st := wait(); st.Signal() != syscall.SIGKILL || alive(p) {
		t.Errorf("ended by %v", st)
	}
	if err := e.SweepAll(t.Context()); err != nil {
		t.Error(err)
	}
	if got := left(t, dir); len(got) != 1 || filepath.Base(got[0]) != string(v.ID()) {
		t.Errorf("left: %v", got)
	}
	if err := e.Sweep(t.Context(), sandbox.VMRecord{ID: v.ID()}); err != nil || len(left(t, dir)) > 0 {
		t.Errorf("sweep of an own machine: %v, left %v", err, left(t, dir))
	}
	if err := v.Kill(); err != nil {
		t.Error(err)
	}
}

// The base of a machine that is not adopted yet stays, whoever sweeps.
func TestSweepKeepsBasesOfMachines(t *testing.T) {
	t.Parallel()
	m, dir := engine(t, &driver{})
	derived := protocol.NewBaseID()
	b, err := openStore(t, dir).BeginBase(derived)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(b.RAMPath(), make([]byte, 1<<20), 0o600),
		b.Publish(t.Context(), checkpoint.BaseManifest{ID: derived, From: checkpoint.Origin{Base: base, Checkpoint: from}}))
	if err != nil {
		t.Fatal(err)
	}
	id := protocol.NewVMID()
	machine.LeaveRoom(t, dir, machine.Record{ID: id, Boot: m.Boot(), UID: -1, Base: derived})
	e := open(t, machine.Options{Driver: &driver{}, Dir: dir}).Kind(machine.Kind{MemoryBytes: 1 << 20})
	there := func() bool {
		_, err := openStore(t, dir).Base(derived)
		return err == nil
	}
	if err := e.Checkpoints(protocol.NewSandboxID()).Sweep(t.Context()); err != nil || !there() {
		t.Errorf("after the sweep of another sandbox: %v, base there: %v", err, there())
	}
	if err := e.Sweep(t.Context(), sandbox.VMRecord{ID: id}); err != nil || !there() {
		t.Errorf("after the machine's: %v, base there: %v", err, there())
	}
	if err := e.SweepAll(t.Context()); err != nil || there() {
		t.Errorf("when it serves nobody: %v, base there: %v", err, there())
	}
}

func openStore(t *testing.T, dir string) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
