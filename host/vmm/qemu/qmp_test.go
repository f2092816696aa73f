package qemu_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/internal/fault"
)

const greeting = `{"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": ["oob"]}}` + "\r\n"

// pair is a connected pair of unix sockets.
func pair(t *testing.T) (client, server *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

type command struct {
	Execute string
	ID      int
}

// serve plays QEMU: answer is called for each command after the negotiation.
func serve(c *net.UnixConn, answer func(w io.Writer, cmd command)) {
	io.WriteString(c, greeting)
	for d := json.NewDecoder(c); ; {
		var cmd command
		if d.Decode(&cmd) != nil {
			return
		}
		if cmd.Execute == "qmp_capabilities" {
			fmt.Fprintf(c, `{"return": {}, "id": %d}`+"\r\n", cmd.ID)
			continue
		}
		answer(c, cmd)
	}
}

func dial(t *testing.T, timeout time.Duration, answer func(io.Writer, command)) (qemu.QMP, chan string) {
	t.Helper()
	client, server := pair(t)
	go serve(server, answer)
	events := make(chan string, 16)
	q, err := qemu.NewQMP(t.Context(), client, timeout, func(name string) { events <- name })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q, events
}

func TestQMPCommandsAndEvents(t *testing.T) {
	t.Parallel()
	q, events := dial(t, time.Minute, func(w io.Writer, cmd command) {
		io.WriteString(w, `{"event": "STOP", "data": {"reason": 7}, "timestamp": {}}`+"\r\n")
		if cmd.Execute == "bad" {
			fmt.Fprintf(w, `{"id": %d, "error": {"class": "GenericError", "desc": "it is bad"}}`+"\r\n", cmd.ID)
			return
		}
		fmt.Fprintf(w, `{"return": {"status": %q}, "id": %d}`+"\r\n", cmd.Execute, cmd.ID)
	})
	var out struct{ Status string }
	if err := q.Execute(t.Context(), "query-status", &out); err != nil || out.Status != "query-status" {
		t.Errorf("%+v, %v", out, err)
	}
	if err := q.Execute(t.Context(), "bad", nil); err == nil || !strings.Contains(err.Error(), "run bad: it is bad") {
		t.Errorf("refused command: %v", err)
	}
	for range 2 {
		if e := <-events; e != "STOP" {
			t.Errorf("event %s", e)
		}
	}
}

// An answer that comes after its command was given up is not the next one's.
func TestQMPLateAnswer(t *testing.T) {
	t.Parallel()
	late := 0
	q, _ := dial(t, time.Minute, func(w io.Writer, cmd command) {
		if cmd.Execute == "slow" {
			late = cmd.ID
			return
		}
		fmt.Fprintf(w, `{"return": {"status": "slow"}, "id": %d}`+"\r\n", late)
		fmt.Fprintf(w, `{"return": {"status": "quick"}, "id": %d}`+"\r\n", cmd.ID)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := q.Execute(ctx, "slow", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("slow: %v", err)
	}
	var out struct{ Status string }
	if err := q.Execute(t.Context(), "quick", &out); err != nil || out.Status != "quick" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestQMPTimeout(t *testing.T) {
	t.Parallel()
	q, _ := dial(t, 20*time.Millisecond, func(io.Writer, command) {})
	if err := q.Execute(t.Context(), "stop", nil); err == nil || !strings.Contains(err.Error(), "no answer within 20ms") {
		t.Error(err)
	}
}

func TestQMPBadServers(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(*net.UnixConn){
		"closes":        func(c *net.UnixConn) { c.Close() },
		"no greeting":   func(c *net.UnixConn) { io.WriteString(c, "{}\n"); c.Close() },
		"not JSON":      func(c *net.UnixConn) { io.WriteString(c, "SSH-2.0\r\n") },
		"endless line":  func(c *net.UnixConn) { io.Copy(c, io.LimitReader(zeros{}, int64(2*qemu.MaxLine))) },
		"greets, ends":  func(c *net.UnixConn) { io.WriteString(c, greeting); c.CloseWrite(); io.Copy(io.Discard, c) },
		"wrong greeter": func(c *net.UnixConn) { io.WriteString(c, `{"return": {}, "id": 1}`+"\n"); c.Close() },
	} {
		client, peer := pair(t)
		go server(peer)
		if _, err := qemu.NewQMP(t.Context(), client, time.Minute, func(string) {}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	client, _ := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := qemu.NewQMP(ctx, client, time.Minute, func(string) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("silent server: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestQMPEndDuringCommand(t *testing.T) {
	t.Parallel()
	q, _ := dial(t, time.Minute, func(w io.Writer, _ command) { w.(io.Closer).Close() })
	if err := q.Execute(t.Context(), "cont", nil); !errors.Is(err, qemu.ErrQMPClosed) {
		t.Error(err)
	}
}

// Not parallel: faults are for the whole process.
func TestQMPFault(t *testing.T) {
	q, _ := dial(t, time.Minute, func(w io.Writer, cmd command) {
		fmt.Fprintf(w, `{"return": {}, "id": %d}`+"\r\n", cmd.ID)
	})
	defer fault.Set("qmp.stop", 1, fault.Error(syscall.EIO))()
	if err := q.Execute(t.Context(), "stop", nil); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	if err := q.Execute(t.Context(), "stop", nil); err != nil {
		t.Error(err)
	}
}
