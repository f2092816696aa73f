package exec_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/guest/exec"
	"github.com/ratoon-project/ratoon/protocol"
)

// 10 MB through a 64 KiB ring, with streams that break and
// acknowledgements that come at random moments, and with captures in between, arrive byte for byte.
func TestBackPressureIsExact(t *testing.T) {
	t.Parallel()
	const total, ring = 10 << 20, 64 << 10
	m := newManager(t, exec.Config{RingSize: ring})
	random := rand.New(rand.NewPCG(1, 2))
	id := protocol.NewExecID()
	open := protocol.ExecOpen{ID: id, Start: shell(fmt.Sprintf(
		"i=0; while [ $i -lt 200000 ]; do echo $i; i=$((i+1)); done >&2 & seq 1 3000000 | head -c %d; wait; exit 5", total))}
	var got [2][]byte
	for exit := (*protocol.ExecExit)(nil); exit == nil; {
		guest, host := newStream()
		served := make(chan struct{})
		open.Stdout, open.Stderr = uint64(len(got[0])), uint64(len(got[1]))
		go func(open protocol.ExecOpen) { defer close(served); m.Serve(t.Context(), open, guest) }(open)
		open.Start = nil
		acked := got
		acknowledge := func() {
			// Beside the reading, since the guest may be in Send.
			ack := &protocol.ExecAck{Stdout: uint64(len(got[0])), Stderr: uint64(len(got[1]))}
			go host.Send(protocol.ExecFrame{Ack: ack})
			acked = got
		}
		acknowledge()
		for frames := random.IntN(200); frames > 0; frames-- {
			var f protocol.ExecFrame
			if err := host.Receive(&f); err != nil {
				t.Fatal(err)
			}
			if f.Error != nil {
				t.Fatal(f.Error)
			}
			if f.Output != nil {
				i := strings.Index("stdout stderr", f.Output.Stream) / 7
				if f.Output.Offset != uint64(len(got[i])) {
					t.Fatalf("%s at %d, want %d", f.Output.Stream, f.Output.Offset, len(got[i]))
				}
				got[i] = append(got[i], f.Output.Data...)
			}
			if exit = f.Exit; exit != nil {
				break
			}
			if late := max(len(got[0])-len(acked[0]), len(got[1])-len(acked[1])); late >= ring/2 || random.IntN(3) == 0 {
				acknowledge()
			}
			if random.IntN(100) == 0 {
				capture(t, m, id)
			}
		}
		host.Close()
		<-served
		if exit != nil && (exit.Stdout != total || exit.Stderr != uint64(len(got[1])) || exit.Status.Code != 5) {
			t.Errorf("exit: %+v", exit)
		}
	}
	var want [2]bytes.Buffer
	for i := 1; want[0].Len() < total; i++ {
		fmt.Fprintln(&want[0], i)
	}
	for i := range 200_000 {
		fmt.Fprintln(&want[1], i)
	}
	if !bytes.Equal(got[0], want[0].Bytes()[:total]) || !bytes.Equal(got[1], want[1].Bytes()) {
		t.Errorf("got %d and %d bytes that differ from the %d and %d written", len(got[0]), len(got[1]), total, want[1].Len())
	}
}

// capture does what the agent does around a freeze, without the freeze.
func capture(t *testing.T, m *exec.Manager, id protocol.ExecID) {
	if err := m.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Pump(t.Context())
	if o := m.Offsets(); len(o) != 1 || o[0].ID != id {
		t.Fatalf("offsets: %+v", o)
	}
	m.Resume()
}

func TestProgramBlocksOnFullRing(t *testing.T) {
	t.Parallel()
	const ring = 8 << 10
	m := newManager(t, exec.Config{RingSize: ring})
	id := protocol.NewExecID()
	h := attach(t, m, protocol.ExecOpen{ID: id, Start: spec("head", "-c", "1000000", "/dev/zero")}, hostOptions{noAck: true})
	h.until("a full ring", func() bool { return len(h.out[0]) == ring })
	if o := m.Offsets(); len(o) != 1 || o[0].Stdout != ring {
		t.Errorf("offsets without ack: got %+v, want %d", o, ring)
	}
	m.Pump(t.Context())
	if o := m.Offsets(); o[0].Stdout != ring {
		t.Errorf("offsets after Pump into a full ring: got %+v, want %d", o, ring)
	}
	h.send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: 100}})
	h.until("room for what was acknowledged", func() bool { return len(h.out[0]) == ring+100 })
	for acked := uint64(0); acked < 1000000; {
		h.until("more", func() bool { return uint64(len(h.out[0])) > acked })
		acked = uint64(len(h.stdout()))
		h.send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: acked}})
	}
	if e := h.wait(); e.Stdout != 1000000 || e.Status.Code != 0 {
		t.Errorf("exit: got %+v", e)
	}
}

func TestAttachOffsets(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	id := protocol.NewExecID()
	h := attach(t, m, protocol.ExecOpen{ID: id, Start: shell("printf 0123456789; sleep 1000")}, hostOptions{noAck: true})
	h.waitOutput("0123456789")
	h.send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: 4}})
	// An ack has no answer; this frame comes after it.
	h.send(protocol.ExecFrame{Signal: "no-such"})
	if e := h.waitError(); e.Code != protocol.CodeInvalidArgument || !strings.Contains(e.Message, "no-such") {
		t.Errorf("bad signal: got %v", e)
	}
	for off, want := range map[uint64]protocol.Code{3: protocol.CodeNotFound, 11: protocol.CodeInvalidArgument} {
		e := attach(t, m, protocol.ExecOpen{ID: id, Stdout: off}, hostOptions{}).waitError()
		if e.Code != want || fmt.Sprint(e.Details["oldest"], e.Details["newest"]) != "4 10" {
			t.Errorf("attach at %d: got %v %v, want %s", off, e, e.Details, want)
		}
	}
	again := attach(t, m, protocol.ExecOpen{ID: id, Stdout: 6}, hostOptions{noAck: true})
	again.waitOutput("6789")
	newer := attach(t, m, protocol.ExecOpen{ID: id, Stdout: 4}, hostOptions{noAck: true})
	newer.waitOutput("456789")
	if e := again.waitError(); e.Code != protocol.CodeCancelled {
		t.Errorf("the older stream: got %v, want %s", e, protocol.CodeCancelled)
	}
	<-again.served
	newer.send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: 11}})
	if e := newer.waitError(); e.Code != protocol.CodeProtocol {
		t.Errorf("ack beyond the end: got %v, want %s", e, protocol.CodeProtocol)
	}
}

func TestDetachedProgramGoesOn(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	s := shell("echo one; read x; echo two $x; exit 4")
	s.Stdin = true
	id := protocol.NewExecID()
	h := attach(t, m, protocol.ExecOpen{ID: id, Start: s}, hostOptions{})
	h.waitOutput("one\n")
	h.input(0, "go\n", false)
	h.until("taken", func() bool { return h.taken == 3 })
	h.detach()
	if got := <-m.Wait(id); got.Code != 4 {
		t.Errorf("status: got %+v, want 4", got)
	}
	before := h.stdout()
	h = attach(t, m, protocol.ExecOpen{ID: id, Stdout: uint64(len(before))}, hostOptions{})
	if e := h.wait(); before+h.stdout() != "one\ntwo go\n" || e.Stdout != 11 || h.started.Stdin != 3 {
		t.Errorf("after attach: %s", h)
	}
}

// A descendant that keeps the pipes does not delay the exit for ever, and is
// neither blocked nor killed by what it writes later.
func TestLingeringDescendant(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	dir := t.TempDir()
	h, id := start(t, m, &protocol.ExecSpec{Dir: dir, Argv: []string{"sh", "-c",
		`(until [ -e go ]; do sleep 0.01; done; head -c 1000000 /dev/zero; echo late >&2; echo $? >wrote; until [ -e end ]; do sleep 0.01; done) & echo main; exit 3`}})
	exit := h.wait()
	if exit.Status.Code != 3 || h.stdout() != "main\n" || exit.Stdout != 5 || exit.Stderr != 0 {
		t.Errorf("exit of the main process: %s", h)
	}
	if m.Live() != 1 {
		t.Errorf("live: got %d, want 1", m.Live())
	}
	write(t, dir+"/go", "")
	eventually(t, "the descendant wrote a megabyte", func() bool { return readFile(dir+"/wrote") == "0\n" })
	if o := m.Offsets(); len(o) != 0 && o[0].Stdout != 5 {
		t.Errorf("offsets after exit: got %+v, want 5", o)
	}
	write(t, dir+"/end", "")
	eventually(t, "nothing is left", func() bool { return m.Live() == 0 })
	again := attach(t, m, protocol.ExecOpen{ID: id, Stdout: 5}, hostOptions{})
	if e := again.wait(); e.Stdout != 5 {
		t.Errorf("exit again: %+v", e)
	}
}

// A descendant that never stops writing does not delay the exit either.
func TestFloodingDescendant(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{CgroupRoot: cgroupRoot(t)})
	h, id := start(t, m, shell("yes & echo main; exit 3"))
	if e := h.wait(); e.Status.Code != 3 || e.Stdout != uint64(len(h.stdout())) {
		t.Errorf("exit: %+v with %d bytes", e, len(h.stdout()))
	}
	if err := m.Kill(id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is left", func() bool { return m.Live() == 0 })
}

func TestStderrTailOutlivesAcks(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, id := start(t, m, shell("seq 1 5000 >&2; echo out"))
	h.wait()
	all := h.stderr()
	if got, want := string(m.StderrTail(id)), all[len(all)-protocol.MaxStderrTail:]; got != want {
		t.Errorf("tail: got %d bytes ending %q, want %d", len(got), got[max(0, len(got)-20):], len(want))
	}
	eventually(t, "rings of an acknowledged program are given back", func() bool { return m.RingUse() == 0 })
	if m.StderrTail(protocol.NewExecID()) != nil {
		t.Error("an unknown program has a tail")
	}
}

func TestSmallBudgetStillFlows(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{RingBudget: 1})
	var hosts []*host
	for range 4 {
		h, _ := start(t, m, spec("head", "-c", "300000", "/dev/zero"))
		hosts = append(hosts, h)
	}
	for _, h := range hosts {
		if e := h.wait(); e.Stdout != 300000 {
			t.Errorf("exit: %+v", e)
		}
	}
}

// Quiesce, freeze, Pump: the offsets are exact and stay so until Resume, with
// acks coming in, a time-out passing and starts being tried.
func TestCaptureIsStill(t *testing.T) {
	t.Parallel()
	root := cgroupRoot(t)
	m := newManager(t, exec.Config{CgroupRoot: root, RingSize: 16 << 10})
	s := spec("cat", "/dev/zero")
	s.Timeout = int64(400 * time.Millisecond)
	id := protocol.NewExecID()
	h := attach(t, m, protocol.ExecOpen{ID: id, Start: s}, hostOptions{noAck: true})
	h.until("a full ring", func() bool { return len(h.out[0]) == 16<<10 })
	if err := m.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	freeze(t, root, "1")
	m.Pump(t.Context())
	before := m.Offsets()
	h.send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: 1000}})
	other, _ := start(t, m, spec("true"))
	if e := other.waitError(); e.Code != protocol.CodeBusy {
		t.Errorf("start during a capture: got %v, want %s", e, protocol.CodeBusy)
	}
	time.Sleep(600 * time.Millisecond) // the time-out's time passes
	if after := m.Offsets(); after[0] != before[0] || before[0].Stdout != 16<<10 {
		t.Errorf("offsets moved: %+v, then %+v", before, after)
	}
	if h.exit != nil {
		t.Error("the time-out struck during a capture")
	}
	m.Pump(t.Context())
	if o := m.Offsets(); o[0].Stdout != 16<<10+1000 {
		t.Errorf("Pump after an ack: got %+v", o)
	}
	freeze(t, root, "0")
	m.Resume()
	eventually(t, "killed after Resume", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		ack := protocol.ExecAck{Stdout: uint64(len(h.out[0]))}
		go h.end.Send(protocol.ExecFrame{Ack: &ack})
		return h.exit != nil && h.exit.TimedOut
	})
}

func freeze(t *testing.T, root, state string) {
	t.Helper()
	write(t, root+"/cgroup.freeze", state)
	eventually(t, "frozen "+state, func() bool { return strings.Contains(readFile(root+"/cgroup.events"), "frozen "+state) })
}

// Deliver ends when the host has what was written before, also what lay in
// the pipe, and not when more is printed meanwhile.
func TestDeliver(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{RingSize: 16 << 10})
	id := protocol.NewExecID()
	h := attach(t, m, protocol.ExecOpen{ID: id, Start: shell("head -c 40000 /dev/zero; echo done >&2; exec cat /dev/zero")}, hostOptions{noAck: true})
	h.until("a full ring", func() bool { return len(h.out[0]) == 16<<10 && len(h.out[1]) == 5 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Deliver(t.Context())
	}()
	for at := uint64(16 << 10); at <= 32<<10; at += 8 << 10 {
		h.send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: at, Stderr: 5}})
		h.until("more output", func() bool { return uint64(len(h.out[0])) == at+16<<10 })
		select {
		case <-done:
			t.Fatalf("delivered, when the host has %d bytes of 40000", at)
		case <-time.After(50 * time.Millisecond):
		}
	}
	h.detach() // a lost link
	h = attach(t, m, protocol.ExecOpen{ID: id, Stdout: 32 << 10, Stderr: 5}, hostOptions{})
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("not delivered, when the host has all that was written before")
	}
}

// What nobody follows is not waited for.
func TestDeliverToNobody(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, _ := start(t, m, shell("read x; echo unheard; exec sleep 1000"))
	h.waitStarted()
	m.Deliver(t.Context()) // nothing was printed
	h.detach()
	s := spec("sh", "-c", "echo unheard; exec sleep 1000")
	h = attach(t, m, protocol.ExecOpen{ID: protocol.NewExecID(), Start: s}, hostOptions{noAck: true})
	h.waitOutput("unheard")
	h.detach()
	m.Deliver(t.Context())
}
