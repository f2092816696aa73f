package machine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/host/vmm/vmmtest"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// hostEnv makes the test binary play a host process: its orders.
const hostEnv = "RATOON_TEST_MACHINE_HOST"

func TestMain(m *testing.M) {
	if text := os.Getenv(hostEnv); text != "" {
		fmt.Println("error", host(text))
		os.Exit(1)
	}
	// The driver's thread that starts processes lives as long as this one.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/ratoon-project/ratoon/host/vmm/qemu.serveStarter"))
}

// orders of a host process, which loads one machine.
type orders struct {
	Dir, Cgroup string
	VM          protocol.VMID
	Pause       bool
}

// bare is the kind of the machines here, whose kernel halts at once: what is in
// their memory is written by the test.
var bare = machine.Kind{MemoryBytes: 64 << 20, CPUs: 1}

const bareTemplate = protocol.BaseID("ba-eeeeeeeeeeeeeeee")

func host(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	e, err := machine.New(ctx, machine.Options{Driver: qemu.New(qemu.Options{}), Dir: o.Dir, Cache: filepath.Join(o.Dir, "cache"), Resident: true, Cgroup: o.Cgroup})
	if err != nil {
		return err
	}
	v, err := e.Kind(bare).Load(ctx, sandbox.LoadRequest{VM: o.VM, Checkpoint: "cp-eeeeeeeeeeeeeeee"})
	if err != nil {
		return err
	}
	if o.Pause {
		if err := v.Pause(ctx); err != nil {
			return err
		}
	}
	fmt.Println("loaded", v.PID(), v.StartTime())
	select {}
}

// residents skips where machines cannot outlive their host process.
func residents(t *testing.T) *qemu.Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("machines outlive the host process of root only: run as root")
	}
	d := qemu.New(qemu.Options{})
	if _, err := d.Info(t.Context()); err != nil {
		vmmtest.Unable(t, "%v", err)
	}
	return d
}

// bareDir is a run directory with such a template.
func bareDir(t *testing.T, d *qemu.Driver) string {
	t.Helper()
	// The header of Linux's boot protocol, whose first instructions are cli
	// and hlt.
	kernel := make([]byte, 4096)
	kernel[0x1f1], kernel[0x211] = 1, 1 // sectors of setup; loaded high
	copy(kernel[0x200:], "\xfa\xf4HdrS")
	binary.LittleEndian.PutUint16(kernel[0x206:], 0x20a)
	spec := vmm.Spec{Dir: t.TempDir(), UID: -1, GID: -1, MemoryBytes: bare.MemoryBytes, CPUs: 1, Kernel: filepath.Join(t.TempDir(), "kernel")}
	if err := os.WriteFile(spec.Kernel, kernel, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p, err := openStore(t, dir).BeginBase(bareTemplate)
	if err != nil {
		t.Fatal(err)
	}
	vm, err := d.Boot(t.Context(), spec, p.RAMPath())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(vm.Pause(t.Context()), vm.SaveState(t.Context(), p.StatePath()), vm.Kill(t.Context()), memory.Protect(p.RAMPath()))
	if err == nil {
		err = p.Publish(t.Context(), checkpoint.BaseManifest{ID: bareTemplate, From: checkpoint.Origin{Template: "bare"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// orphan has a host process load a machine and be killed, or kill itself where
// the environment says so. It returns the record that a journal would have.
func orphan(t *testing.T, o orders, env string) sandbox.VMRecord {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hostEnv+"="+string(text), env)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	cmd.Process.Kill()
	cmd.Wait()
	r := sandbox.VMRecord{ID: o.VM}
	t.Cleanup(func() { checkNobody(t, o) })
	if _, err := fmt.Sscanf(line, "loaded %d %d", &r.PID, &r.StartTime); err != nil && (env == "" || line != "") {
		t.Fatalf("the host said %q", line)
	}
	return r
}

// checkNobody holds that nothing is left of a machine, and ends what is.
func checkNobody(t *testing.T, o orders) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(o.Dir, "vm", string(o.VM), "record"))
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	t.Errorf("machine %s was left", o.VM)
	var r machine.Record
	if json.Unmarshal(b, &r) == nil {
		machine.KillUser(context.Background(), r.UID)
	}
}

// poke writes a page of the machine's memory, at an offset of its base, as the
// guest would.
func poke(t *testing.T, pid int, b *memory.Base, off int64, page []byte) {
	t.Helper()
	access(t, unix.ProcessVMWritev, pid, b, off, page)
}

func peek(t *testing.T, pid int, b *memory.Base, off int64) []byte {
	t.Helper()
	page := make([]byte, 4096)
	access(t, unix.ProcessVMReadv, pid, b, off, page)
	return page
}

func access(t *testing.T, f func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), pid int, b *memory.Base, off int64, page []byte) {
	t.Helper()
	regions, err := memory.Regions(pid, b)
	if err != nil || len(regions) != 1 {
		t.Fatalf("regions %v, %v", regions, err)
	}
	local := []unix.Iovec{{Base: &page[0]}}
	local[0].SetLen(len(page))
	if n, err := f(pid, local, []unix.RemoteIovec{{Base: uintptr(regions[0].Addr) + uintptr(off), Len: len(page)}}, 0); err != nil || n != len(page) {
		t.Fatalf("%d bytes, %v", n, err)
	}
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// cgroupDir is a cgroup of the test's own; "" where there is no version 2.
func cgroupDir(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			dir, err := os.MkdirTemp(f[1], "ratoon-test")
			if err != nil {
				break
			}
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
	}
	t.Log("no cgroup version 2 that can be written is mounted: cgroups are not tried")
	return ""
}

// A machine of a killed host is taken over by the next one: once, captured with
// what it wrote under both, and removed with all it had.
func TestAdopt(t *testing.T) {
	t.Parallel()
	d := residents(t)
	o := orders{Dir: bareDir(t, d), VM: protocol.NewVMID(), Cgroup: cgroupDir(t)}
	rec := orphan(t, o, "")
	m := open(t, machine.Options{Driver: d, Dir: o.Dir, Resident: true, Cgroup: o.Cgroup}).Kind(bare)
	ctx := t.Context()

	unavailable := protocol.Errorf(protocol.CodeUnavailable, "")
	other := rec
	other.StartTime++
	if v, err := m.Adopt(ctx, other); v != nil || !errors.Is(err, unavailable) {
		t.Errorf("another process: %v, %v", v, err)
	}
	if v, err := m.Kind(machine.Kind{MemoryBytes: 128 << 20}).Adopt(ctx, rec); v != nil || !errors.Is(err, unavailable) {
		t.Errorf("another kind: %v, %v", v, err)
	}
	if v, err := m.Adopt(ctx, sandbox.VMRecord{ID: protocol.NewVMID(), PID: rec.PID, StartTime: rec.StartTime}); v != nil || err != nil {
		t.Errorf("a machine that was never made: %v, %v", v, err)
	}
	v, err := m.Adopt(ctx, rec)
	if err != nil || v == nil || v.PID() != rec.PID || v.ID() != rec.ID {
		t.Fatalf("adopted %v, %v", v, err)
	}
	if again, err := m.Adopt(ctx, rec); again != nil || protocol.CodeOf(err) != protocol.CodeBusy {
		t.Errorf("a second time: %v, %v", again, err)
	}
	if o.Cgroup != "" {
		in, err := os.ReadFile(filepath.Join(o.Cgroup, string(rec.ID), "cgroup.procs"))
		if err != nil || strings.TrimSpace(string(in)) != fmt.Sprint(rec.PID) {
			t.Errorf("in its cgroup: %q, %v", in, err)
		}
	}
	base := machine.BaseOf(v)
	poke(t, v.PID(), base, 5<<20, bytes.Repeat([]byte("first"), 1000)[:4096])
	store := m.Checkpoints(owner)
	want := sandbox.Checkpoint{ID: protocol.NewCheckpointID(), Class: sandbox.ClassNamed, Created: time.Now(), Sandbox: owner,
		Timeline: protocol.NewTimelineID(), Line: protocol.NewLineID(), Node: "0", Freeze: 2}
	if err := v.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := store.Capture(ctx, v, want)
	if err != nil {
		t.Fatal(err)
	}
	if cp, err := c.Publish(ctx); err != nil || cp.ID != want.ID || c.Bytes() == 0 || c.Bytes() > 1<<20 {
		t.Fatalf("published %+v of %d bytes, %v", cp, c.Bytes(), err)
	}
	child, err := m.Load(ctx, sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: want.ID})
	if err != nil {
		t.Fatal(err)
	}
	// Not below 1 MiB, where the firmware of the child, which runs, may write.
	for _, off := range []int64{1 << 20, 5 << 20, 6 << 20, bare.MemoryBytes - 4096} {
		if !bytes.Equal(peek(t, v.PID(), base, off), peek(t, child.PID(), base, off)) {
			t.Errorf("the child differs at %#x", off)
		}
	}
	if diff := cmp.Diff(map[string]int{string(bareTemplate): 2}, m.Users()); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	if err := errors.Join(v.Resume(ctx), v.Kill(), child.Kill()); err != nil {
		t.Error(err)
	}
	if memory.Alive(rec.PID, rec.StartTime) || len(left(t, o.Dir)) > 0 || len(m.Users()) > 0 {
		t.Errorf("left: %v, users %v", left(t, o.Dir), m.Users())
	}
	if v, err := m.Adopt(ctx, rec); v != nil || err != nil {
		t.Errorf("what is gone: %v, %v", v, err)
	}
}

// An engine that closes lets its machines go on; a paused one is known as that.
func TestAdoptAgain(t *testing.T) {
	t.Parallel()
	d := residents(t)
	o := orders{Dir: bareDir(t, d), VM: protocol.NewVMID(), Pause: true}
	rec := orphan(t, o, "")
	for round := range 3 {
		e, err := machine.New(t.Context(), machine.Options{Driver: d, Dir: o.Dir, Cache: filepath.Join(o.Dir, "cache"), Resident: true})
		if err != nil {
			t.Fatal(err)
		}
		v, err := e.Kind(bare).Adopt(t.Context(), rec)
		if err != nil || v == nil {
			t.Fatalf("round %d: %v, %v", round, v, err)
		}
		if paused, err := v.(*machine.VM).Paused(t.Context()); err != nil || paused != (round == 0) {
			t.Errorf("round %d: paused: %v, %v", round, paused, err)
		}
		if err := errors.Join(v.Resume(t.Context()), e.Close()); err != nil {
			t.Fatal(err)
		}
		if !memory.Alive(rec.PID, rec.StartTime) {
			t.Fatal("it ended with its engine")
		}
	}
	// One whose machines end with it adopts none, and ends those it is told of.
	e := open(t, machine.Options{Driver: d, Dir: o.Dir})
	if v, err := e.Kind(bare).Adopt(t.Context(), rec); v != nil || err != nil {
		t.Errorf("adopted %v, %v", v, err)
	}
	if err := e.Sweep(t.Context(), rec); err != nil || memory.Alive(rec.PID, rec.StartTime) {
		t.Errorf("sweep: %v", err)
	}
}

// A host that is killed at any step of a start leaves what the next one finds
// and removes, also a process that nobody has noted.
func TestKilledWithinStart(t *testing.T) {
	t.Parallel()
	d := residents(t)
	dir, cgroup := bareDir(t, d), cgroupDir(t)
	for _, at := range []string{"machine.record.write", "machine.record.rename", "machine.cgroup.make", "qemu.start", "qmp.getfd",
		"machine.record.write#2", "machine.record.rename#2", "qmp.cont"} {
		o := orders{Dir: dir, Cgroup: cgroup, VM: protocol.NewVMID()}
		if cgroup == "" && at == "machine.cgroup.make" {
			continue
		}
		rec := orphan(t, o, fault.Env+"="+at+"=kill")
		if rec.PID != 0 {
			t.Errorf("%s: the host was not killed", at)
		}
		running := func() (n int) {
			b, err := os.ReadFile(filepath.Join(dir, "vm", string(o.VM), "record"))
			var r machine.Record
			if err != nil || json.Unmarshal(b, &r) != nil {
				return 0
			}
			used, err := machine.UsedUIDs()
			if err != nil {
				t.Fatal(err)
			}
			return len(used[r.UID])
		}
		if begun := strings.HasSuffix(at, "#2") || strings.HasPrefix(at, "qmp."); begun != (running() == 1) {
			t.Errorf("%s: %d processes", at, running())
		}
		m := open(t, machine.Options{Driver: d, Dir: dir, Resident: true, Cgroup: cgroup}).Kind(bare)
		if v, err := m.Adopt(t.Context(), sandbox.VMRecord{ID: o.VM}); v != nil {
			t.Errorf("%s: adopted %v", at, err)
		}
		if err := m.Sweep(t.Context(), sandbox.VMRecord{ID: o.VM}); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		if got := left(t, dir); len(got) > 0 || running() > 0 {
			t.Errorf("%s: left %v", at, got)
		}
		if cgroup != "" {
			if got, _ := filepath.Glob(filepath.Join(cgroup, "vm-*")); len(got) > 0 {
				t.Errorf("%s: left %v", at, got)
			}
		}
	}
}
