package vmmtest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

const mib = 1 << 20

// patience bounds each step; a loaded host emulates slowly.
const patience = 2 * time.Minute

// suite is one run.
type suite struct {
	driver   vmm.Driver
	fixtures Fixtures
	uid      int
	rootfs   string    // holds diskMark
	template *template // of 256 MiB, with a region of regionPages of seed 1
}

// template is a base with the device state that belongs to it.
type template struct {
	spec  vmm.Spec
	base  *memory.Base
	state string
}

// machine is a VM with a conversation.
type machine struct {
	vmm.VM
	spec vmm.Spec
	conn net.Conn
	in   *bufio.Reader
}

func (s *suite) spec(t testing.TB, size int64) vmm.Spec {
	return vmm.Spec{
		Dir: longDir(t), UID: s.uid, GID: s.uid, MemoryBytes: size, CPUs: 1,
		Kernel: s.fixtures.Kernel, Initrd: s.fixtures.Initrd, Rootfs: s.rootfs, Cmdline: "quiet",
	}
}

// longDir is a directory whose path does not fit a socket's address.
func longDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 24))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func step(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.Context()), patience)
}

func kill(t testing.TB, vm vmm.VM) {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	if err := vm.Kill(ctx); err != nil {
		t.Errorf("kill: %v", err)
	}
}

// boot starts a machine cold and waits for the guest.
func (s *suite) boot(t testing.TB, spec vmm.Spec, ram string) *machine {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	vm, err := s.driver.Boot(ctx, spec, ram)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{VM: vm, spec: spec}
	t.Cleanup(func() { m.close(t) })
	m.connect(t)
	return m
}

// load starts a machine from an image, still paused.
func (s *suite) load(t testing.TB, tpl *template, delta *memory.Delta, state string) *machine {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	spec := tpl.spec
	spec.Dir = longDir(t)
	vm, err := s.driver.Load(ctx, spec, vmm.Image{Base: tpl.base, Delta: delta, State: state})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{VM: vm, spec: spec}
	t.Cleanup(func() { m.close(t) })
	return m
}

func (m *machine) close(t testing.TB) {
	t.Helper()
	if m.conn != nil {
		m.conn.Close()
	}
	kill(t, m)
}

// connect opens the control port and waits until the guest answers there.
func (m *machine) connect(t testing.TB) {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	conn, err := m.Carrier().Open(ctx, link.Control)
	if err != nil {
		t.Fatal(err)
	}
	m.converse(conn)
	if got := m.say(t, "echo hello"); got != "hello" {
		t.Fatalf("guest answered %q", got)
	}
}

func (m *machine) converse(conn net.Conn) { m.conn, m.in = conn, bufio.NewReader(conn) }

// say sends a command and returns the answer.
func (m *machine) say(t testing.TB, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	m.conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(m.conn, line); err != nil {
		t.Fatalf("%s: %v (%v)", line, err, m.Err())
	}
	answer, err := m.in.ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v (%v)\n%s", line, err, m.Err(), m.ConsoleTail())
	}
	answer = strings.TrimSuffix(answer, "\n")
	if strings.HasPrefix(answer, "error") {
		t.Fatalf("%s: %s", line, answer)
	}
	return answer
}

// resume lets a loaded machine run and connects to it.
func (m *machine) resume(t testing.TB) {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	if err := m.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	m.connect(t)
}

// save pauses the machine and writes its device state. The connection is
// closed before, so that nothing of it is on its way.
func (m *machine) save(t testing.TB) (state string) {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	m.conn.Close()
	state = filepath.Join(t.TempDir(), "state")
	if err := m.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.SaveState(ctx, state); err != nil {
		t.Fatal(err)
	}
	return state
}

// capture pauses, saves and captures, and leaves the machine paused.
func (m *machine) capture(t testing.TB, base *memory.Base) (*memory.Delta, string) {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	state := m.save(t)
	delta, err := memory.CreateDelta(ctx, m.PID(), base, filepath.Join(t.TempDir(), "delta"))
	if err != nil {
		t.Fatal(err)
	}
	return delta, state
}

// makeTemplate boots a machine, lets do prepare it, and makes it a base.
func (s *suite) makeTemplate(t testing.TB, size int64, do func(*machine)) *template {
	t.Helper()
	ram := filepath.Join(t.TempDir(), "ram")
	m := s.boot(t, s.spec(t, size), ram)
	if do != nil {
		do(m)
	}
	tpl := &template{spec: m.spec, state: m.save(t)}
	kill(t, m)
	if err := memory.Protect(ram); err != nil {
		t.Fatal(err)
	}
	base, err := memory.OpenBase(protocol.NewBaseID(), ram)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { base.Close() })
	tpl.base = base
	return tpl
}
