package vmmtest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

func (s *suite) testDevices(t *testing.T) {
	a := s.load(t, s.template, nil, s.template.state)
	b := s.load(t, s.template, nil, s.template.state)
	for _, m := range []*machine{a, b} {
		m.resume(t)
		if got := m.say(t, "disk"); !strings.HasPrefix(got, strconv.Quote(diskMark)) || strings.HasSuffix(got, "<nil>") {
			t.Errorf("disk: %s", got)
		}
	}
	if x, y := a.say(t, "random"), b.say(t, "random"); x == y {
		t.Errorf("two machines got the same randomness %s", x)
	}
	ctx, cancel := step(t)
	defer cancel()
	bulk, err := a.Carrier().Open(ctx, link.Bulk)
	if err != nil {
		t.Fatal(err)
	}
	defer bulk.Close()
	bulk.SetDeadline(time.Now().Add(patience))
	sent := make([]byte, 2*mib)
	rand.Read(sent)
	go bulk.Write(sent)
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(bulk, got); err != nil || !bytes.Equal(sent, got) {
		t.Errorf("bulk echo differs: %v", err)
	}
	if _, err := a.Carrier().Open(ctx, "other"); err == nil {
		t.Error("a channel that does not exist was opened")
	}
}

func (s *suite) testSaveStateRefusals(t *testing.T) {
	m := s.load(t, s.template, nil, s.template.state)
	m.resume(t)
	ctx, cancel := step(t)
	defer cancel()
	path := filepath.Join(t.TempDir(), "state")
	if err := m.SaveState(ctx, path); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("of a running machine: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was left")
	}
	m.conn.Close()
	if err := errors.Join(m.Pause(ctx), m.Pause(ctx)); err != nil {
		t.Errorf("pause twice: %v", err)
	}
	if err := m.SaveState(ctx, filepath.Join(path, "no", "such")); err == nil {
		t.Error("saved into a directory that does not exist")
	}
	if err := m.SaveState(ctx, path); err != nil {
		t.Error(err)
	}
	if err := m.SaveState(ctx, path); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file that exists: %v", err)
	}
	m.resume(t)
	m.say(t, "count")
}

// Loads that must fail, each with its code, and leave nothing.
func (s *suite) testDamagedImages(t *testing.T) {
	m := s.load(t, s.template, nil, s.template.state)
	m.resume(t)
	m.say(t, "fill 9 0 2000 1")
	delta, state := m.capture(t, s.template.base)
	m.close(t)
	dir := t.TempDir()
	change := func(name, src string, f func([]byte) []byte) string {
		b, err := os.ReadFile(src)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, f(b), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	lost := protocol.CodeCheckpointLost
	good := vmm.Image{Base: s.template.base, Delta: delta, State: state}
	cases := []struct {
		name  string
		image vmm.Image
		spec  func(*vmm.Spec)
		want  protocol.Code
	}{
		{"state missing", vmm.Image{Base: good.Base, Delta: delta, State: state + "x"}, nil, lost},
		{"state empty", vmm.Image{Base: good.Base, Delta: delta, State: change("empty", state, func([]byte) []byte { return nil })}, nil, lost},
		{"state cut", vmm.Image{Base: good.Base, Delta: delta, State: change("cut", state, half)}, nil, lost},
		{"state noise", vmm.Image{Base: good.Base, Delta: delta, State: change("noise", state, func(b []byte) []byte { rand.Read(b); return b })}, nil, lost},
		{"delta flipped", vmm.Image{Base: good.Base, Delta: &memory.Delta{Path: change("flip", delta.Path, flip), Runs: delta.Runs}, State: state}, nil, lost},
		{"delta cut", vmm.Image{Base: good.Base, Delta: &memory.Delta{Path: change("half", delta.Path, half), Runs: delta.Runs}, State: state}, nil, lost},
		{"delta missing", vmm.Image{Base: good.Base, Delta: &memory.Delta{Path: delta.Path + "x", Runs: delta.Runs}, State: state}, nil, lost},
		{"other memory size", good, func(s *vmm.Spec) { s.MemoryBytes *= 2 }, protocol.CodeCheckpointRefused},
		{"no disk", good, func(s *vmm.Spec) { s.Rootfs += "x" }, protocol.CodeInternal},
		{"no directory", good, func(s *vmm.Spec) { s.Dir += "x" }, protocol.CodeInternal},
	}
	run := func(i int) {
		c := cases[i%len(cases)]
		spec := s.template.spec
		if c.spec != nil {
			c.spec(&spec)
		}
		ctx, cancel := step(t)
		defer cancel()
		vm, err := s.driver.Load(ctx, spec, c.image)
		if err == nil {
			kill(t, vm)
			t.Errorf("%s: loaded", c.name)
		} else if got := protocol.CodeOf(err); got != c.want {
			t.Errorf("%s: %s: %v", c.name, got, err)
		}
	}
	for i := range cases {
		run(i)
	}
	before := resources(t, s.template.spec.Dir)
	for i := range 50 {
		run(i)
	}
	checkResources(t, before, s.template.spec.Dir)
	// What is good still loads.
	child := s.load(t, s.template, delta, state)
	child.resume(t)
}

func (s *suite) testFailedBoots(t *testing.T) {
	good := s.spec(t, 128*mib)
	ram := filepath.Join(t.TempDir(), "ram")
	for name, change := range map[string]func(*vmm.Spec){
		"no kernel":  func(s *vmm.Spec) { s.Kernel += "x" },
		"no initrd":  func(s *vmm.Spec) { s.Initrd += "x" },
		"no memory":  func(s *vmm.Spec) { s.MemoryBytes = 0 },
		"odd memory": func(s *vmm.Spec) { s.MemoryBytes++ },
		"no CPU":     func(s *vmm.Spec) { s.CPUs = 0 },
	} {
		spec := good
		change(&spec)
		before := resources(t, good.Dir)
		ctx, cancel := step(t)
		if vm, err := s.driver.Boot(ctx, spec, ram+name); err == nil {
			kill(t, vm)
			t.Errorf("%s: booted", name)
		}
		cancel()
		checkResources(t, before, good.Dir)
	}
}

// usage is what a failed start could leave.
type usage struct {
	files, goroutines int
	children, entries []string
}

func resources(t testing.TB, dir string) (u usage) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	u.files, u.goroutines = len(fds), runtime.NumGoroutine()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		u.entries = append(u.entries, e.Name())
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, _ := os.ReadFile(path)
		if f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			u.children = append(u.children, path)
		}
	}
	return u
}

// checkResources gives goroutines that are told to end the time to do so.
func checkResources(t testing.TB, before usage, dir string) {
	t.Helper()
	now := resources(t, dir)
	for end := time.Now().Add(patience); now.goroutines > before.goroutines && time.Now().Before(end); {
		runtime.Gosched()
		time.Sleep(time.Millisecond)
		now = resources(t, dir)
	}
	if now.files > before.files || now.goroutines > before.goroutines || !slices.Equal(now.children, before.children) || !slices.Equal(now.entries, before.entries) {
		t.Errorf("left behind:\nbefore %+v\nnow    %+v", before, now)
	}
}

func awaitEnd(t testing.TB, m *machine) *vmm.EndError {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(patience):
		t.Fatal("the end was not noticed")
	}
	end, ok := errors.AsType[*vmm.EndError](m.Err())
	if !ok {
		t.Fatalf("end: %v", m.Err())
	}
	return end
}

func (s *suite) testKilled(t *testing.T) {
	m := s.load(t, s.template, nil, s.template.state)
	m.resume(t)
	if err := m.Err(); err != nil {
		t.Errorf("error of a running machine: %v", err)
	}
	if !memory.Alive(m.PID(), m.StartTime()) {
		t.Error("not alive")
	}
	syscall.Kill(m.PID(), syscall.SIGKILL)
	if end := awaitEnd(t, m); end.Reason != vmm.ReasonKilled {
		t.Errorf("end: %v", end)
	}
	ctx, cancel := step(t)
	defer cancel()
	for name, err := range map[string]error{
		"pause":  m.Pause(ctx),
		"resume": m.Resume(ctx),
		"save":   m.SaveState(ctx, filepath.Join(t.TempDir(), "s")),
	} {
		if !errors.Is(err, protocol.Errorf(protocol.CodeSandboxStopped, "")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Carrier().Open(ctx, link.Control); err == nil {
		t.Error("connected to a dead machine")
	}
	for range 2 {
		kill(t, m)
	}
	if left, _ := os.ReadDir(m.spec.Dir); len(left) > 0 {
		t.Errorf("left in the directory: %v", left)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", m.PID())); err == nil {
		t.Error("not reaped")
	}
	// What a killed host leaves there does not hinder the next start.
	spec := m.spec
	for range 2 {
		vm, err := s.driver.Load(ctx, spec, vmm.Image{Base: s.template.base, State: s.template.state})
		if err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(spec.Dir)
		if err != nil {
			t.Fatal(err)
		}
		kill(t, vm)
		for _, e := range left {
			if err := os.WriteFile(filepath.Join(spec.Dir, e.Name()), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s *suite) testGuestEnds(t *testing.T) {
	for command, want := range map[string]vmm.Reason{
		"poweroff": vmm.ReasonPoweroff, "reset": vmm.ReasonReset, "panic": vmm.ReasonPanic,
	} {
		m := s.load(t, s.template, nil, s.template.state)
		m.resume(t)
		fmt.Fprintln(m.conn, command)
		if end := awaitEnd(t, m); end.Reason != want {
			t.Errorf("%s: %v\n%s", command, end, m.ConsoleTail())
		}
		m.close(t)
	}
}

func (s *suite) testConsoleFlood(t *testing.T) {
	m := s.load(t, s.template, nil, s.template.state)
	m.resume(t)
	m.say(t, "flood 1")
	var got []byte
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got = m.ConsoleTail(); bytes.Contains(got, []byte("end of flood")) {
			break
		}
	}
	if !bytes.Contains(got, []byte("end of flood")) || len(got) > mib/2 {
		t.Errorf("the tail of %d bytes ends with %.100q", len(got), got[max(0, len(got)-100):])
	}
	entries, err := os.ReadDir(m.spec.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Size() > mib/2 {
			t.Errorf("%s has grown to %d bytes", e.Name(), info.Size())
		}
	}
}

func (s *suite) testPrivileges(t *testing.T) {
	m := s.load(t, s.template, nil, s.template.state)
	m.resume(t)
	status := map[string]string{}
	for line := range strings.Lines(procFile(t, m, "status")) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.Join(strings.Fields(value), " ")
	}
	want := map[string]string{"Seccomp": "2", "NoNewPrivs": "1"}
	if s.uid >= 0 {
		four := strings.TrimSpace(strings.Repeat(strconv.Itoa(s.uid)+" ", 4))
		want["Uid"], want["Gid"], want["Groups"] = four, four, ""
		want["CapEff"], want["CapPrm"] = "0000000000000000", "0000000000000000"
	}
	for key, value := range want {
		if status[key] != value {
			t.Errorf("%s is %q, not %q", key, status[key], value)
		}
	}
	if env := procFile(t, m, "environ"); env != "" {
		t.Errorf("environment %q", env)
	}
	for line := range strings.Lines(procFile(t, m, "limits")) {
		if f := strings.Fields(line); strings.HasPrefix(line, "Max core file") && f[4] != "0" {
			t.Errorf("limit: %s", line)
		}
	}
	s.checkBaseIsReadOnly(t)
}

func procFile(t testing.TB, m *machine, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", m.PID(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkBaseIsReadOnly tries to write to what the machine maps, as its user and
// through the descriptors that it was given.
func (s *suite) checkBaseIsReadOnly(t *testing.T) {
	ctx, cancel := step(t)
	defer cancel()
	memfd, err := s.template.base.Memfd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	file, err := s.template.base.File()
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*os.File{"memory": memfd, "file": file} {
		if s.uid < 0 && f == file {
			continue // its owner could change the mode
		}
		for _, try := range []string{"printf x >&3", "printf x 1<>/proc/self/fd/3", "printf x >/proc/self/fd/3"} {
			cmd := exec.CommandContext(ctx, "/bin/sh", "-c", try)
			cmd.ExtraFiles = []*os.File{f}
			if s.uid >= 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.uid), Gid: uint32(s.uid)}}
			}
			if err := cmd.Run(); err == nil {
				t.Errorf("base in %s: %q succeeded", name, try)
			}
		}
	}
}
