package vmmtest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// adopt takes over what orphan has left.
func (s *suite) adopt(t testing.TB, spec vmm.Spec, l loaded) *machine {
	t.Helper()
	m := s.adoptBare(t, spec, l)
	t.Cleanup(func() { m.close(t) })
	t.Cleanup(s.template.base.Know(l.Name))
	return m
}

// adoptBare is adopt of a machine that is not killed by itself.
func (s *suite) adoptBare(t testing.TB, spec vmm.Spec, l loaded) *machine {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	vm, err := s.driver.Adopt(ctx, spec, l.Process)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{VM: vm, spec: spec}
}

// rejoin connects to a guest that an earlier host has talked to, and reads
// through what that one left.
func (m *machine) rejoin(t testing.TB) {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	conn, err := m.Carrier().Open(ctx, link.Control)
	if err != nil {
		t.Fatal(err)
	}
	m.converse(conn)
	conn.SetDeadline(time.Now().Add(patience))
	conn.Write([]byte("\necho again\n"))
	for line := ""; line != "again\n"; {
		if line, err = m.in.ReadString('\n'); err != nil {
			t.Fatalf("the guest does not answer: %v\n%s", err, m.ConsoleTail())
		}
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("machines outlive the host process of root only: run as root")
	}
}

// A machine whose host was killed in the middle of a line goes on under the
// next one: its link, its memory, its captures, its console, its end.
func (s *suite) testAdopted(t *testing.T) {
	needRoot(t)
	if _, err := s.template.base.Memfd(t.Context()); err != nil { // stays, for all loads
		t.Fatal(err)
	}
	before := resources(t, s.template.spec.Dir)
	t.Run("machine", func(t *testing.T) {
		spec, l := s.orphan(t, "", hostStep{"resume", ""}, hostStep{"say", "count"}, hostStep{"say", "fill 2 100 500 1"}, hostStep{"begin", "echo unfinish"})
		want := newModel(regionPages, 1)
		for i := 100; i < 600; i++ {
			want[i] = 2
		}
		m := s.adopt(t, spec, l)
		if m.PID() != l.Process.PID || m.StartTime() != l.Process.StartTime || m.Process() != l.Process {
			t.Errorf("adopted %+v, not %+v", m.Process(), l.Process)
		}
		s.refuseSecond(t, spec, l)
		m.rejoin(t)
		if got := m.say(t, "count"); got != "3" {
			t.Errorf("counts %s, not 3", got)
		}
		want.checkGuest(t, m)
		want.fill(t, m, 3, 400, 400, 1)
		want.zero(t, m, 1000, 50)
		for range 2 {
			delta, state := m.capture(t, s.template.base)
			want.checkImage(t, s.template.base, delta)
			child := s.load(t, s.template, delta, state)
			child.resume(t)
			want.checkGuest(t, child)
			child.close(t)
			m.resume(t)
			want.fill(t, m, 4, 2000, 10, 1)
			want.checkGuest(t, m)
		}
		m.say(t, "flood 0")
		for end := time.Now().Add(patience); !bytes.Contains(m.ConsoleTail(), []byte("end of flood")); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the console says %q", m.ConsoleTail())
			}
		}
		m.close(t)
		if end := awaitEnd(t, m); end.Reason != vmm.ReasonKilled {
			t.Errorf("end: %v", end)
		}
		checkGone(t, m)
	})
	checkResources(t, before, s.template.spec.Dir)
}

// refuseSecond holds that a machine has one host, and that the attempt of a
// second does no harm.
func (s *suite) refuseSecond(t *testing.T, spec vmm.Spec, l loaded) {
	t.Helper()
	ctx, cancel := step(t)
	defer cancel()
	if vm, err := s.driver.Adopt(ctx, spec, l.Process); protocol.CodeOf(err) != protocol.CodeBusy {
		t.Errorf("adopted a second time: %v, %v", vm, err)
	}
	if vm, err := s.driver.Load(ctx, spec, vmm.Image{Base: s.template.base, State: s.template.state}); protocol.CodeOf(err) != protocol.CodeBusy {
		t.Errorf("loaded in its directory: %v, %v", vm, err)
	}
}

func checkGone(t *testing.T, m *machine) {
	t.Helper()
	if memory.Alive(m.PID(), m.StartTime()) {
		t.Error("it lives")
	}
	if left, _ := os.ReadDir(m.spec.Dir); len(left) > 0 {
		t.Errorf("left in the directory: %v", left)
	}
}

// Several that try at once: one gets it.
func (s *suite) testAdoptedOnce(t *testing.T) {
	needRoot(t)
	spec, l := s.orphan(t, "", hostStep{"resume", ""})
	var mu sync.Mutex
	var got []vmm.VM
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			ctx, cancel := step(t)
			defer cancel()
			vm, err := s.driver.Adopt(ctx, spec, l.Process)
			if err != nil && protocol.CodeOf(err) != protocol.CodeBusy {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				got = append(got, vm)
			}
		})
	}
	all.Wait()
	for _, vm := range got {
		defer kill(t, vm)
	}
	if len(got) != 1 {
		t.Fatalf("%d have the machine", len(got))
	}
	m := &machine{VM: got[0], spec: spec}
	m.rejoin(t)
	m.conn.Close()
}

// A host that was killed within a capture leaves the machine paused.
func (s *suite) testAdoptedInCapture(t *testing.T) {
	needRoot(t)
	state := filepath.Join(t.TempDir(), "state")
	for name, steps := range map[string][]hostStep{
		"":                           {{"resume", ""}, {"say", "fill 2 0 100 1"}, {"pause", ""}},
		"qmp.xen-save-devices-state": {{"resume", ""}, {"say", "fill 2 0 100 1"}, {"pause", ""}, {"save", state}},
		"qmp.remove-fd":              {{"resume", ""}, {"say", "fill 2 0 100 1"}, {"pause", ""}, {"save", state}},
	} {
		env := ""
		if name != "" {
			env = fault.Env + "=" + name + "=kill"
		}
		spec, l := s.orphan(t, env, steps...)
		m := s.adopt(t, spec, l)
		ctx, cancel := step(t)
		defer cancel()
		if paused, err := m.Paused(ctx); err != nil || !paused {
			t.Errorf("%s: paused: %v, %v", name, paused, err)
		}
		if err := m.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if paused, err := m.Paused(ctx); err != nil || paused {
			t.Errorf("%s: paused after it is un-paused: %v, %v", name, paused, err)
		}
		m.rejoin(t)
		want := newModel(regionPages, 1)
		for i := range 100 {
			want[i] = 2
		}
		want.checkGuest(t, m)
		delta, _ := m.capture(t, s.template.base)
		want.checkImage(t, s.template.base, delta)
		m.close(t)
		checkGone(t, m)
	}
}

// What half of a message the killed host had sent, and what of the guest's it
// had not read, is not seen on the next link.
func (s *suite) testAdoptedLink(t *testing.T) {
	needRoot(t)
	spec, l := s.orphan(t, "", hostStep{"resume", ""}, hostStep{"say", "link"}, hostStep{"link", "old host "})
	m := s.adopt(t, spec, l)
	ctx, cancel := step(t)
	defer cancel()
	// The guest works through what was whole; a host comes while it does.
	for round := range 2 {
		ln, err := link.Connect(ctx, m.Carrier(), link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i, size := range []int{10, 900_000, 0, 300_000} {
			sent := &protocol.Outcome{Key: protocol.Key{Timeline: protocol.NewTimelineID(), Start: uint64(round + 1), Sequence: uint64(i + 1)},
				Value: bytes.Repeat([]byte{byte(i)}, size)}
			if err := ln.Send(ctx, sent); err != nil {
				t.Fatal(err)
			}
			got, err := ln.Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if c, ok := got.(*protocol.Call); !ok || c.Key != sent.Key || !bytes.Equal(c.Arguments, sent.Value) {
				t.Fatalf("round %d: got %s, not the answer to message %d", round, got.Type(), i)
			}
		}
		ln.Close()
	}
}

// What is not that machine is refused by its code, and left alone.
func (s *suite) testAdoptRefusals(t *testing.T) {
	needRoot(t)
	spec, l := s.orphan(t, "", hostStep{"resume", ""})
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	stranger := vmm.Process{PID: sleeper.Process.Pid, Program: l.Process.Program}
	var err error
	if stranger.StartTime, err = memory.StartTime(stranger.PID); err != nil {
		t.Fatal(err)
	}
	renamed, other := stranger, spec
	if renamed.Program, err = os.Readlink("/proc/" + strconv.Itoa(stranger.PID) + "/exe"); err != nil {
		t.Fatal(err)
	}
	root := spec
	root.UID, root.GID = -1, -1
	other.Dir = longDir(t)
	if err := os.WriteFile(filepath.Join(other.Dir, "qmp.sock"), nil, 0o600); err != nil { // nobody listens
		t.Fatal(err)
	}
	later := l.Process
	later.StartTime++
	before := resources(t, spec.Dir)
	for _, tt := range []struct {
		name    string
		spec    vmm.Spec
		process vmm.Process
		want    protocol.Code // "": os.ErrProcessDone
	}{
		{"another start time", spec, later, ""},
		{"another program", spec, stranger, protocol.CodeUnavailable},
		{"another user", spec, renamed, protocol.CodeUnavailable},
		{"the machine as another user", root, l.Process, protocol.CodeUnavailable},
		{"another process's machine", root, renamed, protocol.CodeUnavailable},
		{"stale sockets", other, l.Process, protocol.CodeUnavailable},
	} {
		ctx, cancel := step(t)
		vm, err := s.driver.Adopt(ctx, tt.spec, tt.process)
		cancel()
		switch {
		case err == nil:
			t.Errorf("%s: adopted", tt.name)
			kill(t, vm)
		case tt.want == "" && !errors.Is(err, os.ErrProcessDone), tt.want != "" && protocol.CodeOf(err) != tt.want:
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	checkResources(t, before, spec.Dir)
	if !memory.Alive(stranger.PID, stranger.StartTime) {
		t.Error("a stranger was killed")
	}
	m := s.adopt(t, spec, l)
	m.rejoin(t)
	m.close(t)
	if vm, err := s.driver.Adopt(t.Context(), spec, l.Process); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("of a dead one: %v, %v", vm, err)
	}
	if left := names(t, spec.Dir); len(left) > 0 {
		t.Errorf("left in the directory: %v", left)
	}
}

func names(t testing.TB, dir string) (out []string) {
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

// The end of an adopted machine is noticed, with its reason as far as it shows.
func (s *suite) testAdoptedEnds(t *testing.T) {
	needRoot(t)
	for _, tt := range []struct {
		how  string
		want []vmm.Reason
	}{
		{"kill -9", []vmm.Reason{vmm.ReasonExited, vmm.ReasonKilled}},
		{"poweroff", []vmm.Reason{vmm.ReasonPoweroff}},
	} {
		spec, l := s.orphan(t, "", hostStep{"resume", ""})
		m := s.adopt(t, spec, l)
		m.rejoin(t)
		if tt.how == "poweroff" {
			m.conn.Write([]byte("poweroff\n"))
		} else {
			syscall.Kill(m.PID(), syscall.SIGKILL)
		}
		if end := awaitEnd(t, m); !slices.Contains(tt.want, end.Reason) || !strings.Contains(end.Status, "unknown") {
			t.Errorf("%s: %v", tt.how, end)
		}
		m.close(t)
		checkGone(t, m)
	}
}

// A machine that is let go goes on, for the same process too.
func (s *suite) testDetached(t *testing.T) {
	needRoot(t)
	if _, err := s.template.base.Memfd(t.Context()); err != nil { // stays, for all loads
		t.Fatal(err)
	}
	before := resources(t, s.template.spec.Dir)
	t.Run("machine", func(t *testing.T) {
		ctx, cancel := step(t)
		defer cancel()
		spec := s.template.spec
		spec.Dir, spec.Resident = longDir(t), true
		vm, err := s.driver.Load(ctx, spec, vmm.Image{Base: s.template.base, State: s.template.state})
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{VM: vm, spec: spec}
		m.resume(t)
		m.say(t, "count")
		m.conn.Close()
		l := loaded{Process: m.Process()}
		for range 2 {
			if err := m.Detach(); err != nil {
				t.Error(err)
			}
			m = s.adoptBare(t, spec, l)
			m.rejoin(t)
			m.conn.Close()
		}
		t.Cleanup(func() { m.close(t) })
		m.resume(t)
		if got := m.say(t, "count"); got != "3" {
			t.Errorf("counts %s, not 3", got)
		}
		m.close(t)
		syscall.Wait4(m.PID(), nil, 0, nil) // it is still this process's child
		checkGone(t, m)
	})
	checkResources(t, before, s.template.spec.Dir)
}
