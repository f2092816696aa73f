package qemu_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/host/vmm/vmmtest"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// patience bounds what a loaded machine may take.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	vmmtest.Host(qemu.New(qemu.Options{}))
	if len(os.Args) > 2 && os.Args[1] == "host" {
		host(os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// host plays the process that owns machines, until it is killed.
func host(dir string) {
	vm, err := qemu.New(qemu.Options{}).Boot(context.Background(), bareSpec(dir), filepath.Join(dir, "ram"))
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("pid", vm.PID(), vm.StartTime())
	select {}
}

// bareSpec is a machine whose kernel halts at once: what the tests here need
// of a guest.
func bareSpec(dir string) vmm.Spec {
	return vmm.Spec{Dir: dir, UID: -1, GID: -1, MemoryBytes: 64 << 20, CPUs: 1, Kernel: filepath.Join(dir, "kernel")}
}

// writeKernel makes an image that QEMU takes for Linux: the header of the boot
// protocol, whose first instructions are cli and hlt.
func writeKernel(t *testing.T, dir string) {
	t.Helper()
	b := make([]byte, 4096)
	b[0x1f1] = 1 // sectors of setup
	copy(b[0x200:], "\xfa\xf4HdrS")
	binary.LittleEndian.PutUint16(b[0x206:], 0x20a)
	b[0x211] = 1 // loaded high
	if err := os.WriteFile(filepath.Join(dir, "kernel"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// driver skips or fails without QEMU.
func driver(t *testing.T) *qemu.Driver {
	t.Helper()
	d := qemu.New(qemu.Options{})
	if _, err := d.Info(t.Context()); err != nil {
		vmmtest.Unable(t, "%v", err)
	}
	return d
}

func kill(t *testing.T, vm vmm.VM) {
	t.Helper()
	if err := vm.Kill(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// bareImage boots such a machine and makes an image of it.
func bareImage(t *testing.T, d *qemu.Driver) (vmm.Spec, vmm.Image) {
	t.Helper()
	dir := t.TempDir()
	writeKernel(t, dir)
	spec, ram := bareSpec(dir), filepath.Join(t.TempDir(), "ram")
	vm, err := d.Boot(t.Context(), spec, ram)
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	if err := errors.Join(vm.Pause(t.Context()), vm.SaveState(t.Context(), state)); err != nil {
		t.Error(err)
	}
	kill(t, vm)
	if err := memory.Protect(ram); err != nil {
		t.Fatal(err)
	}
	base, err := memory.OpenBase(protocol.NewBaseID(), ram)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { base.Close() })
	empty := filepath.Join(t.TempDir(), "delta")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return spec, vmm.Image{Base: base, State: state, Delta: &memory.Delta{Path: empty}}
}

// Devices read guest memory while their state is loaded.
func TestDeltaComesBeforeState(t *testing.T) {
	d := driver(t)
	spec, image := bareImage(t, d)
	var mu sync.Mutex
	var order []string
	note := func(label string) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, label)
		return nil
	}
	for _, label := range []string{"qemu.start", "memory.apply", "qmp.getfd", "qmp.migrate-incoming"} {
		defer fault.Set(label, 1, note)()
	}
	vm, err := d.Load(t.Context(), spec, image)
	if err != nil {
		t.Fatal(err)
	}
	defer kill(t, vm)
	want := []string{"qemu.start", "memory.apply", "qmp.getfd", "qmp.migrate-incoming"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// A start that fails at any step leaves no process, descriptor or file.
func TestFaultsLeaveNothing(t *testing.T) {
	d := driver(t)
	spec, image := bareImage(t, d)
	if _, err := image.Base.Memfd(t.Context()); err != nil { // stays, for all loads
		t.Fatal(err)
	}
	before, entries := openFiles(t), names(t, spec.Dir)
	for _, label := range []string{
		"qemu.start", "qmp.qmp_capabilities", "qmp.query-status", "memory.apply",
		"qmp.getfd", "qmp.migrate-incoming", "qmp.query-migrate", "qmp.query-status#2",
	} {
		name, nth := label, 1
		if n, ok := strings.CutSuffix(label, "#2"); ok {
			name, nth = n, 2
		}
		clear := fault.Set(name, nth, fault.Error(syscall.EIO))
		vm, err := d.Load(t.Context(), spec, image)
		clear()
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", label, err)
		}
		if err == nil {
			kill(t, vm)
		}
		if now := names(t, spec.Dir); !slices.Equal(now, entries) {
			t.Errorf("%s: left in the directory: %v", label, now)
		}
	}
	if now := openFiles(t); now > before {
		t.Errorf("%d descriptors open, %d before", now, before)
	}
}

func openFiles(t *testing.T) int { return len(names(t, "/proc/self/fd")) }

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func TestStateOnFullDisk(t *testing.T) {
	d := driver(t)
	spec, image := bareImage(t, d)
	vm, err := d.Load(t.Context(), spec, image)
	if err != nil {
		t.Fatal(err)
	}
	defer kill(t, vm)
	path := filepath.Join(t.TempDir(), "state")
	clear := fault.Set("qemu.state.write", 1, fault.Error(syscall.ENOSPC))
	err = vm.SaveState(t.Context(), path)
	clear()
	if protocol.CodeOf(err) != protocol.CodeDiskFull {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file left: %v", err)
	}
	// The machine is as it was.
	if err := errors.Join(vm.SaveState(t.Context(), path), vm.Resume(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestMachineDiesWithItsHost(t *testing.T) {
	driver(t)
	dir := t.TempDir()
	writeKernel(t, dir)
	cmd := exec.Command(os.Args[0], "host", dir)
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
	var pid int
	var start uint64
	if _, err := fmt.Sscanf(line, "pid %d %d", &pid, &start); err != nil {
		t.Fatalf("host said %q", line)
	}
	for end := time.Now().Add(patience); memory.Alive(pid, start); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the machine outlived its host")
		}
	}
}

// program makes a script that takes the place of QEMU.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	text := "#!/bin/sh\n[ \"$1\" = --version ] && { echo QEMU emulator version 7.2.0; exit; }\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProgramsThatDoNotStart(t *testing.T) {
	dir := t.TempDir()
	writeKernel(t, dir)
	for _, tt := range []struct {
		name, script, text string
		want               protocol.Code
	}{
		{"silent", "exec sleep 1000", "not ready within", protocol.CodeTimeout},
		{"complains", "echo no such machine >&2; exit 3", "exit status 3): \"no such machine", protocol.CodeUnavailable},
		{"crashes", "kill -SEGV $$", "signal: segmentation fault", protocol.CodeUnavailable},
	} {
		d := qemu.New(qemu.Options{Program: program(t, tt.script), StartTimeout: 500 * time.Millisecond})
		if tt.name != "silent" {
			d = qemu.New(qemu.Options{Program: program(t, tt.script), StartTimeout: patience})
		}
		_, err := d.Boot(t.Context(), bareSpec(dir), filepath.Join(t.TempDir(), "ram"))
		if protocol.CodeOf(err) != tt.want || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %s: %v", tt.name, protocol.CodeOf(err), err)
		}
		if left := names(t, dir); !slices.Equal(left, []string{"kernel"}) {
			t.Errorf("%s: left %v", tt.name, left)
		}
	}
}

func TestRAMFileInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeKernel(t, dir)
	ram := filepath.Join(t.TempDir(), "ram")
	if err := os.WriteFile(ram, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if vm, err := driver(t).Boot(t.Context(), bareSpec(dir), ram); err == nil {
		kill(t, vm)
		t.Error("booted over a file with content")
	}
	if b, _ := os.ReadFile(ram); string(b) != "precious" {
		t.Errorf("content is now %d bytes", len(b))
	}
}

// An adoption that fails at any step leaves the machine to the next one.
func TestAdoptFaultsLeaveAll(t *testing.T) {
	d := driver(t)
	spec, image := bareImage(t, d)
	spec.Resident = true
	vm, err := d.Load(t.Context(), spec, image)
	if err != nil {
		t.Fatal(err)
	}
	p := vm.Process()
	if err := vm.Detach(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Wait4(p.PID, nil, 0, nil) // it is still this process's child
	defer syscall.Kill(p.PID, syscall.SIGKILL)
	before, entries := openFiles(t), names(t, spec.Dir)
	for _, label := range []string{"qemu.adopt", "qmp.qmp_capabilities", "qmp.query-status"} {
		clear := fault.Set(label, 1, fault.Error(syscall.EIO))
		vm, err := d.Adopt(t.Context(), spec, p)
		clear()
		if !errors.Is(err, syscall.EIO) || protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("%s: %v", label, err)
		}
		if err == nil {
			kill(t, vm)
		}
		if now := names(t, spec.Dir); !slices.Equal(now, entries) {
			t.Errorf("%s: the directory was %v, is %v", label, entries, now)
		}
	}
	if now := openFiles(t); now > before {
		t.Errorf("%d descriptors open, %d before", now, before)
	}
	vm, err = d.Adopt(t.Context(), spec, p)
	if err != nil {
		t.Fatal(err)
	}
	if paused, err := vm.Paused(t.Context()); err != nil || !paused {
		t.Errorf("paused: %v, %v", paused, err)
	}
	kill(t, vm)
}
