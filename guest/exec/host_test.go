package exec_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"github.com/ratoon-project/ratoon/guest/exec"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; it says nothing about speed.
const patience = 60 * time.Second

// end is one end of an in-memory stream; frames are encoded as on the wire.
type end struct {
	in, out chan []byte
	closed  chan struct{}
	once    *sync.Once
}

func newStream() (guest, host *end) {
	a, b := make(chan []byte), make(chan []byte)
	closed, once := make(chan struct{}), new(sync.Once)
	return &end{a, b, closed, once}, &end{b, a, closed, once}
}

func (e *end) Send(v any) error {
	b, err := msgpack.Marshal(v)
	if err != nil {
		return err
	}
	select {
	case e.out <- b:
		return nil
	case <-e.closed:
		return io.ErrClosedPipe
	}
}

func (e *end) Receive(v any) error {
	select {
	case b := <-e.in:
		return msgpack.Unmarshal(b, v)
	case <-e.closed:
		return io.EOF
	}
}

func (e *end) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

// host is the other end of one exec stream.
type host struct {
	t      testing.TB
	end    *end
	served chan struct{}
	read   chan struct{} // closed when the host has read all

	mu      sync.Mutex
	started *protocol.ExecStarted
	out     [2][]byte // from the offsets asked for on
	from    [2]uint64
	taken   uint64
	exit    *protocol.ExecExit
	err     *protocol.Error
	over    bool
	news    chan struct{} // closed and replaced at each change
}

type hostOptions struct {
	noAck bool // acknowledge nothing
}

func attach(t testing.TB, m *exec.Manager, open protocol.ExecOpen, opt hostOptions) *host {
	t.Helper()
	guest, end := newStream()
	h := &host{t: t, end: end, served: make(chan struct{}), read: make(chan struct{}), from: [2]uint64{open.Stdout, open.Stderr}, news: make(chan struct{})}
	go func() {
		defer close(h.served)
		m.Serve(context.Background(), open, guest)
	}()
	go func() {
		defer close(h.read)
		for h.next(opt) {
			continue
		}
	}()
	t.Cleanup(func() {
		end.Close()
		<-h.served
		<-h.read
	})
	return h
}

func (h *host) next(opt hostOptions) bool {
	var f protocol.ExecFrame
	err := h.end.Receive(&f)
	h.mu.Lock()
	var ack protocol.ExecAck
	switch {
	case err != nil:
		h.over = true
	case f.Started != nil:
		h.started = f.Started
		h.taken = f.Started.Stdin
	case f.Taken != nil:
		h.taken = *f.Taken
	case f.Output != nil:
		i := 0
		if f.Output.Stream == "stderr" {
			i = 1
		}
		if want := h.from[i] + uint64(len(h.out[i])); f.Output.Offset != want || h.exit != nil {
			h.t.Errorf("%s at offset %d, want %d (after exit: %v)", f.Output.Stream, f.Output.Offset, want, h.exit != nil)
		}
		h.out[i] = append(h.out[i], f.Output.Data...)
	case f.Exit != nil:
		h.exit = f.Exit
	case f.Error != nil:
		h.err = f.Error
	}
	ack = protocol.ExecAck{Stdout: h.from[0] + uint64(len(h.out[0])), Stderr: h.from[1] + uint64(len(h.out[1]))}
	acks := !opt.noAck && (f.Output != nil || f.Exit != nil)
	close(h.news)
	h.news = make(chan struct{})
	h.mu.Unlock()
	if acks {
		h.end.Send(protocol.ExecFrame{Ack: &ack})
	}
	return err == nil
}

// until waits for a state of the stream.
func (h *host) until(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.After(patience)
	for {
		h.mu.Lock()
		done, over, news := ok(), h.over, h.news
		h.mu.Unlock()
		if done {
			return
		}
		if over {
			h.t.Fatalf("stream ended while waiting for %s: %s", what, h)
		}
		select {
		case <-news:
		case <-deadline:
			h.t.Fatalf("no %s: %s", what, h)
		}
	}
}

func (h *host) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("started %+v stdout %.300q stderr %.300q exit %+v error %+v", h.started, h.out[0], h.out[1], h.exit, h.err)
}

func (h *host) wait() *protocol.ExecExit {
	h.t.Helper()
	h.until("exit", func() bool { return h.exit != nil })
	return h.exit
}

func (h *host) waitError() *protocol.Error {
	h.t.Helper()
	h.until("error", func() bool { return h.err != nil })
	return h.err
}

func (h *host) waitStarted() *protocol.ExecStarted {
	h.t.Helper()
	h.until("started", func() bool { return h.started != nil })
	return h.started
}

func (h *host) waitOutput(want string) {
	h.t.Helper()
	h.until("output "+want, func() bool { return bytes.Contains(h.out[0], []byte(want)) })
}

func (h *host) send(f protocol.ExecFrame) {
	h.t.Helper()
	if err := h.end.Send(f); err != nil {
		h.t.Fatalf("send %+v: %v", f, err)
	}
}

func (h *host) input(off uint64, data string, last bool) {
	h.t.Helper()
	h.send(protocol.ExecFrame{Input: &protocol.ExecInput{Offset: off, Data: []byte(data), End: last}})
}

func (h *host) detach() {
	h.end.Close()
	<-h.served
	<-h.read
}

func (h *host) stdout() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.out[0])
}

func (h *host) stderr() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.out[1])
}

func newManager(t testing.TB, cfg exec.Config) *exec.Manager {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	m := exec.New(cfg)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

// cgroupRoot makes a version 2 cgroup for one test.
func cgroupRoot(t testing.TB) string {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(mount, "ratoon-exec-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { removeCgroup(t, dir) })
		return dir
	}
	t.Skip("no writable cgroup v2; run as root with cgroup2 mounted on /sys/fs/cgroup")
	return ""
}

func removeCgroup(t testing.TB, dir string) {
	os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	eventually(t, "cgroup removed", func() bool {
		below, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, b := range below {
			os.Remove(filepath.Dir(b))
		}
		err := os.Remove(dir)
		return err == nil || errors.Is(err, os.ErrNotExist)
	})
}

// eventually polls what has no event to wait for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so after %v: %s", patience, what)
		}
		time.Sleep(pause)
	}
}

func spec(argv ...string) *protocol.ExecSpec { return &protocol.ExecSpec{Argv: argv} }

func shell(script string) *protocol.ExecSpec { return spec("sh", "-c", script) }

// start starts a program under a new id.
func start(t testing.TB, m *exec.Manager, s *protocol.ExecSpec) (*host, protocol.ExecID) {
	t.Helper()
	id := protocol.NewExecID()
	return attach(t, m, protocol.ExecOpen{ID: id, Start: s}, hostOptions{}), id
}
