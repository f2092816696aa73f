package daemon_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// noVMM is a host without a VMM; real machines are in integration/.
type noVMM struct{ vmm.Driver }

func (noVMM) Info(context.Context) (vmm.Info, error) { return vmm.Info{Name: "none"}, nil }

func open(t *testing.T, dir string) *daemon.Daemon {
	t.Helper()
	st, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(t.Context(), daemon.Options{Dir: st, Driver: noVMM{},
		Boot: func(context.Context, func(string)) (machine.Boot, error) { return machine.Boot{}, errors.New("none") }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// ask runs a request whose answer counts how often it was run.
func ask(t *testing.T, d *daemon.Daemon, key, request string, status int) (runs int, again bool, code protocol.Code) {
	t.Helper()
	a, again, err := d.Once(t.Context(), key, request, func() daemon.Answer {
		runs++
		return daemon.Answer{Status: status, Body: []byte("x")}
	}, func(a daemon.Answer) bool { return a.Status < 300 })
	if err == nil && string(a.Body) != "x" {
		t.Fatalf("answer %q", a.Body)
	}
	return runs, again, protocol.CodeOf(err)
}

// TestAnswerFaults: a request whose record cannot be written is not run, or
// runs once and never again.
func TestAnswerFaults(t *testing.T) {
	for _, c := range []struct {
		label  string
		status int
		runs   int
		code   protocol.Code // of the next try
	}{
		{"daemon.answer.begin", 201, 0, ""},
		{"daemon.answer", 201, 1, protocol.CodeHostRestarted},
		{"daemon.answer.drop", 500, 1, protocol.CodeHostRestarted},
	} {
		t.Run(c.label, func(t *testing.T) {
			d := open(t, t.TempDir())
			clear := fault.Set(c.label, 1, fault.Error(unix.ENOSPC))
			runs, _, code := ask(t, d, "key", "a", c.status)
			clear()
			if runs != c.runs || code == "" {
				t.Fatalf("ran %d times, %q; want %d and an error", runs, code, c.runs)
			}
			if _, _, code := ask(t, d, "key", "a", 201); code != c.code {
				t.Fatalf("the next try: %q, want %q", code, c.code)
			}
		})
	}
}

// TestAnswersEnd: answers are kept over restarts, but not for ever.
func TestAnswersEnd(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	ask(t, d, "key", "a", 201)
	d.Close()
	d = open(t, dir)
	if runs, again, code := ask(t, d, "key", "a", 201); runs != 0 || !again || code != "" {
		t.Fatalf("after a restart: ran %d times, again %v, %q", runs, again, code)
	}
	if err := d.PutAnswer("key", daemon.Answer{Request: "a", Started: time.Now().Add(-25 * time.Hour), Done: true}); err != nil {
		t.Fatal(err)
	}
	d.Close()
	clear := fault.Set("daemon.answer.forget", 1, fault.Error(unix.ENOSPC))
	st, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := daemon.Open(t.Context(), daemon.Options{Dir: st, Driver: noVMM{}}); err == nil {
		d.Close()
		t.Fatal("opened though the journal could not be written")
	}
	clear()
	d = open(t, dir)
	if runs, _, code := ask(t, d, "key", "b", 201); runs != 1 || code != "" {
		t.Fatalf("a day later: ran %d times, %q", runs, code)
	}
}

func TestOneDaemon(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	st, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Open(t.Context(), daemon.Options{Dir: st, Driver: noVMM{}}); protocol.CodeOf(err) != protocol.CodeBusy {
		t.Fatalf("a second daemon: %v", err)
	}
}
