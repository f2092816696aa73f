package boot_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/image"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// vm is a real machine under QEMU, with agentd as its PID 1.
type vm struct {
	dir     string
	console string
	exited  chan error
}

// cacheDir is shared by tests that need a kernel and an image;
// RATOON_TEST_CACHE names a lasting one.
func cacheDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("RATOON_TEST_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return t.TempDir()
	}
	return filepath.Join(dir, "ratoon-test", "images")
}

// buildAgentd builds the binary as it is shipped.
func buildAgentd(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agentd")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "../cmd/agentd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build agentd: %v\n%s", err, out)
	}
	return path
}

// testRoot is the built-in image, or the one that RATOON_TEST_ROOT names.
func testRoot(t *testing.T, cache *image.Cache) string {
	t.Helper()
	if path := os.Getenv("RATOON_TEST_ROOT"); path != "" {
		return path
	}
	root, err := cache.Builtin(t.Context(), image.BuiltinOptions{})
	if err != nil {
		t.Skipf("no guest image: %v: run `make setup`, with access to Debian's packages", err)
	}
	return root.Path
}

func startVM(t *testing.T, cmdline string) *vm {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a machine, which takes minutes on a busy host: run without -short")
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("qemu-system-x86_64 is not installed: run `make setup`")
	}
	cache := image.New(image.Options{Dir: cacheDir(t)})
	kernel, err := cache.Kernel(t.Context())
	if err != nil {
		t.Skipf("no guest kernel: %v: run `make setup`, with access to Debian's packages", err)
	}
	root := testRoot(t, cache)
	dir, err := os.MkdirTemp("", "vm") // short, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	initrd, _, err := image.New(image.Options{Dir: dir}).Initramfs(t.Context(), kernel, buildAgentd(t))
	if err != nil {
		t.Fatal(err)
	}
	v := &vm{dir: dir, console: filepath.Join(dir, "console"), exited: make(chan error, 1)}
	port := func(name string) []string {
		return []string{
			"-chardev", "socket,server=on,wait=off,id=" + name + ",path=" + filepath.Join(dir, name),
			"-device", "virtserialport,chardev=" + name + ",name=ratoon." + name,
		}
	}
	args := []string{
		"-accel", "tcg", "-machine", "q35", "-cpu", "max", "-m", "256", "-smp", "1",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "file:" + v.console,
		"-kernel", kernel.Path, "-initrd", initrd, "-append", image.Cmdline + " ratoon.debug " + cmdline,
		"-drive", "if=none,id=root,format=raw,readonly=on,file=" + root, "-device", "virtio-blk-pci,drive=root",
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
	}
	args = append(append(args, port("control")...), port("bulk")...)
	cmd := exec.Command(qemu, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { v.exited <- cmd.Wait(); close(v.exited) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-v.exited
		if t.Failed() {
			t.Logf("console:\n%s", v.consoleText())
		}
	})
	return v
}

func (v *vm) consoleText() string {
	b, _ := os.ReadFile(v.console)
	return string(b)
}

// host is the host's end of one link.
type host struct {
	t     *testing.T
	l     *link.Link
	hello *protocol.Hello
}

// connect waits for the guest and reads its hello.
func (v *vm) connect(t *testing.T) *host {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dialer := &link.UnixDialer{Control: filepath.Join(v.dir, "control"), Bulk: filepath.Join(v.dir, "bulk")}
	l, err := link.Connect(ctx, dialer, link.Options{})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	h := &host{t: t, l: l}
	h.hello = expect[*protocol.Hello](h)
	return h
}

func (h *host) send(m protocol.Message) {
	h.t.Helper()
	if err := h.l.Send(h.t.Context(), m); err != nil {
		h.t.Fatalf("send %s: %v", m.Type(), err)
	}
}

// expect receives a message, which must be of type M.
func expect[M protocol.Message](h *host) M {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	m, err := h.l.Receive(ctx)
	if err != nil {
		h.t.Fatalf("receive: %v", err)
	}
	got, ok := m.(M)
	if !ok {
		h.t.Fatalf("received %s %+v", m.Type(), m)
	}
	return got
}

// program is one exec.
type program struct {
	t  *testing.T
	id protocol.ExecID
	st *link.Stream
}

func (h *host) start(script string) program {
	h.t.Helper()
	return h.exec(protocol.ExecOpen{ID: protocol.NewExecID(), Start: &protocol.ExecSpec{Argv: []string{"/bin/bash", "-c", script}}})
}

// exec opens a program's stream; when it returns the program runs.
func (h *host) exec(open protocol.ExecOpen) program {
	h.t.Helper()
	st, err := h.l.OpenStream(h.t.Context(), protocol.Open{Op: protocol.OpExec, Exec: &open})
	if err != nil {
		h.t.Fatalf("open stream: %v", err)
	}
	st.SetDeadline(time.Now().Add(time.Minute))
	var f protocol.ExecFrame
	if err := st.Receive(&f); err != nil || f.Started == nil {
		h.t.Fatalf("start a program: %+v, %v", f, err)
	}
	return program{h.t, open.ID, st}
}

// wait reads all output.
func (p program) wait() (string, protocol.ExitStatus) {
	p.t.Helper()
	p.st.SetDeadline(time.Now().Add(2 * time.Minute))
	var out bytes.Buffer
	for {
		var f protocol.ExecFrame
		if err := p.st.Receive(&f); err != nil {
			p.t.Fatalf("read the program's output: %v; so far %q", err, out.String())
		}
		switch {
		case f.Output != nil:
			out.Write(f.Output.Data)
		case f.Error != nil:
			p.t.Fatalf("exec: %v", f.Error)
		case f.Exit != nil:
			p.st.Close()
			return out.String(), f.Exit.Status
		}
	}
}

// run runs a script that must succeed.
func (h *host) run(script string) string {
	h.t.Helper()
	began := time.Now()
	defer func() { h.t.Logf("%6.2fs %s", time.Since(began).Seconds(), script) }()
	out, status := h.start(script).wait()
	if status.Code != 0 {
		h.t.Fatalf("%s: %+v\n%s", script, status, out)
	}
	return strings.TrimSpace(out)
}

// quiesce stops the guest by freeze f and ends the link.
func (h *host) quiesce(f protocol.Freeze, key protocol.Key) *protocol.Quiesced {
	h.t.Helper()
	h.send(&protocol.Prepare{Freeze: f, Key: key})
	d := expect[*protocol.Drained](h)
	// The guest may have ended the link before Send returns.
	h.l.Send(h.t.Context(), &protocol.AckPosition{Freeze: f, Position: d.Position})
	q := expect[*protocol.Quiesced](h)
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	if err := h.l.AwaitEnd(ctx); err != nil {
		h.t.Fatalf("await the end: %v", err)
	}
	if err := h.l.Close(); err != nil {
		h.t.Fatalf("close: %v", err)
	}
	return q
}

// thaw ends freeze f, as the timeline tl.
func (h *host) thaw(f protocol.Freeze, tl protocol.TimelineID, change func(*protocol.Thaw)) {
	h.t.Helper()
	entropy := make([]byte, 64)
	rand.Read(entropy)
	t := &protocol.Thaw{
		Freeze: f, Timeline: tl, Incarnation: 1, Time: time.Now().UnixNano(), Entropy: entropy, Reason: protocol.ReasonBranch,
		Identity: protocol.Identity{Node: "0", Hostname: "node-0", MachineID: fmt.Sprintf("%032x", entropy[:16]), NewLine: true},
	}
	if change != nil {
		change(t)
	}
	h.send(t)
	if got := expect[*protocol.Thawed](h); got.Freeze != f || got.Timeline != tl {
		h.t.Fatalf("thawed: %+v", got)
	}
}

// until polls a condition of the guest.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("%s did not happen", what)
		}
	}
}
