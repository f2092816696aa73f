package exec_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/guest/exec"
	"github.com/ratoon-project/ratoon/protocol"
)

func withInput(argv ...string) *protocol.ExecSpec {
	return &protocol.ExecSpec{Argv: argv, Stdin: true}
}

func readFile(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}

func TestInputByOffset(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, id := start(t, m, withInput("cat"))
	h.input(0, "hello ", false)
	h.input(3, "lo wor", false) // part of it again
	h.input(0, "hello", false)  // all of it again
	h.waitOutput("hello wor")
	h.until("taken", func() bool { return h.taken == 9 })
	h.detach()
	h = attach(t, m, protocol.ExecOpen{ID: id, Stdout: 9}, hostOptions{})
	if got := h.waitStarted().Stdin; got != 9 {
		t.Errorf("input taken: got %d, want 9", got)
	}
	h.input(9, "ld", true)
	if e := h.wait(); h.stdout() != "ld" || e.Stdout != 11 || e.Status.Code != 0 {
		t.Errorf("end: %s", h)
	}
}

func TestInputErrors(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	for name, tt := range map[string]struct {
		send func(h *host)
		want protocol.Code
	}{
		"gap":       {func(h *host) { h.input(0, "x", false); h.input(5, "x", false) }, protocol.CodeProtocol},
		"too large": {func(h *host) { h.input(0, strings.Repeat("x", protocol.MaxExecInput+1), false) }, protocol.CodeTooLarge},
		"empty":     {func(h *host) { h.send(protocol.ExecFrame{}) }, protocol.CodeProtocol},
		"resize":    {func(h *host) { h.send(protocol.ExecFrame{Resize: &protocol.ExecResize{Rows: 1, Columns: 1}}) }, protocol.CodeInvalidArgument},
	} {
		h, id := start(t, m, withInput("sleep", "1000"))
		tt.send(h)
		if e := h.waitError(); e.Code != tt.want {
			t.Errorf("%s: got %v, want %s", name, e, tt.want)
		}
		<-h.served
		if attach(t, m, protocol.ExecOpen{ID: id}, hostOptions{}).waitStarted() == nil {
			t.Errorf("%s: the program is gone", name)
		}
	}
}

// Input that a slow program has not taken is forgotten with its stream.
func TestUntakenInputIsSentAgain(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	dir := t.TempDir()
	s := withInput("sh", "-c", "until [ -e go ]; do sleep 0.01; done; wc -c")
	s.Dir = dir
	data := strings.Repeat("0123456789", 30_000) // more than a pipe holds
	h, id := start(t, m, s)
	h.input(0, data, true)
	h.until("a full pipe", func() bool { return h.taken >= 65536 })
	h.detach()
	h = attach(t, m, protocol.ExecOpen{ID: id}, hostOptions{})
	taken := h.waitStarted().Stdin
	if taken >= uint64(len(data)) {
		t.Fatalf("taken %d of %d by a program that reads nothing", taken, len(data))
	}
	write(t, dir+"/go", "")
	h.input(taken, data[taken:], true)
	if h.wait(); strings.TrimSpace(h.stdout()) != "300000" {
		t.Errorf("the program read %s bytes, want 300000", h.stdout())
	}
}

// A program that closed its input takes what a pipe holds, and consumes nothing.
func TestInputNobodyReads(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	dir := t.TempDir()
	s := withInput("sh", "-c", "exec <&-; echo closed; until [ -e go ]; do sleep 0.01; done")
	s.Dir = dir
	h, id := start(t, m, s)
	h.waitOutput("closed")
	h.input(0, strings.Repeat("x", 200_000), false)
	h.until("a full pipe", func() bool { return h.taken == protocol.MaxExecUnread })
	if got := consumed(t, m, id); got != 0 {
		t.Errorf("consumed %d bytes", got)
	}
	write(t, dir+"/go", "")
	if e := h.wait(); e.Status.Code != 0 {
		t.Errorf("exit: %+v", e)
	}
}

func consumed(t *testing.T, m *exec.Manager, id protocol.ExecID) uint64 {
	t.Helper()
	for _, e := range m.Offsets() {
		if e.ID == id {
			return e.Stdin
		}
	}
	t.Fatalf("no program %s", id)
	return 0
}

// quiesced holds a program while f runs, as a restore does: without a link.
func quiesced(t *testing.T, m *exec.Manager, h *host, f func()) {
	t.Helper()
	if err := m.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.detach()
	f()
	m.Resume()
}

// A copy goes on where the timeline that it replaces had come.
func TestAdvance(t *testing.T) {
	t.Parallel()
	const lines = "one\ntwo\nthree\nfour\n"
	for name, tt := range map[string]struct {
		to    uint64
		end   bool // the input's end was there
		close bool // by the program
		from  uint64
		want  string
	}{
		"no farther":  {to: 4, from: 14, want: "two\nthree\nfour\n"},
		"less":        {to: 1, from: 14, want: "two\nthree\nfour\n"},
		"in the pipe": {to: 8, from: 14, want: "three\nfour\n"},
		"all of it":   {to: 14, from: 14, want: "four\n"},
		"beyond":      {to: 16, from: 16, want: "ur\n"},
		"ended":       {to: 8, end: true, from: 19, want: "three\nfour\n"},
		"closed":      {to: 4, end: true, close: true, from: 19},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			m := newManager(t, exec.Config{})
			s := withInput("sh", "-c", `read a; echo "$a"; [ $0 = true ] && exec <&-; echo ready; until [ -e go ]; do sleep 0.01; done; cat 2>&-`, fmt.Sprint(tt.close))
			s.Dir = t.TempDir()
			h, id := start(t, m, s)
			sent := lines[:14]
			if tt.end {
				sent = lines
			}
			h.input(0, sent, tt.end)
			h.waitOutput("one\nready\n")
			h.until("its input", func() bool { return h.taken == uint64(len(sent)) })
			quiesced(t, m, h, func() {
				if got := consumed(t, m, id); got != 4 {
					t.Errorf("consumed %d bytes, want 4", got)
				}
				m.Advance([]protocol.ExecOffsets{{ID: "ex-other", Stdin: 9}, {ID: id, Stdin: tt.to}})
				if got := consumed(t, m, id); got != max(4, tt.to) {
					t.Errorf("consumed %d bytes, want %d", got, max(4, tt.to))
				}
			})
			h = attach(t, m, protocol.ExecOpen{ID: id, Stdout: 10}, hostOptions{})
			if got := h.waitStarted().Stdin; got != tt.from {
				t.Errorf("goes on from %d, want %d", got, tt.from)
			}
			h.input(tt.from, lines[tt.from:], true)
			write(t, s.Dir+"/go", "")
			if h.wait(); h.stdout() != tt.want {
				t.Errorf("the program reads %q, want %q", h.stdout(), tt.want)
			}
		})
	}
}

// At a new line's end of input the offset is still that of the line, and what
// the host sends stays with it.
func TestAdvanceAtEnd(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, id := start(t, m, withInput("sh", "-c", "read a; echo \"$a\"; until [ -e go ]; do sleep 0.01; done; wc -c"))
	h.input(0, "one\ntwo\n", false)
	h.waitOutput("one")
	h.until("its input", func() bool { return h.taken == 8 })
	for _, to := range []uint64{100, 2} {
		quiesced(t, m, h, func() {
			m.CloseInputs()
			if got := consumed(t, m, id); to == 100 && got != 4 {
				t.Errorf("consumed %d bytes of the line, want 4", got)
			}
			m.Advance([]protocol.ExecOffsets{{ID: id, Stdin: to}})
		})
		h = attach(t, m, protocol.ExecOpen{ID: id, Stdout: 4}, hostOptions{})
		if got := h.waitStarted().Stdin; got != to {
			t.Errorf("stands at %d, want %d", got, to)
		}
		h.input(to, "more", true)
		h.send(protocol.ExecFrame{}) // is answered after the input was looked at
		h.waitError()
		if got := consumed(t, m, id); got != to {
			t.Errorf("consumed %d bytes, want %d", got, to)
		}
	}
}

// The host may have nothing older than its first input.
func TestInputGap(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, id := start(t, m, withInput("cat"))
	h.input(100, "hello ", false)
	h.waitOutput("hello ")
	if got := consumed(t, m, id); got != 106 {
		t.Errorf("consumed %d bytes, want 106", got)
	}
	h.input(106, "world", true)
	if h.wait(); h.stdout() != "hello world" {
		t.Errorf("%s", h)
	}
}

func TestNoInputIsAtItsEnd(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, _ := start(t, m, spec("cat"))
	h.wait()
	tty, _ := start(t, m, &protocol.ExecSpec{Argv: []string{"cat"}, TTY: true})
	tty.wait()
}

// A new line's programs see their input's end, whatever was on its way.
func TestCloseInputs(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	pipe, _ := start(t, m, withInput("sh", "-c", "cat; echo end"))
	stuck, stuckID := start(t, m, withInput("sh", "-c", "sleep 2; wc -c"))
	ended, endedID := start(t, m, withInput("sh", "-c", "sleep 2; wc -c"))
	ended.input(0, "all of it\n", true)
	ended.until("its input", func() bool { return ended.taken == 10 })
	tty, ttyID := start(t, m, &protocol.ExecSpec{Argv: []string{"sh", "-c", "stty -echo; echo ready; cat; echo end"}, TTY: true, Stdin: true})
	pipe.input(0, "abc", false)
	pipe.waitOutput("abc")
	tty.waitOutput("ready")
	tty.input(0, "line\n", false)
	tty.waitOutput("line")
	stuck.input(0, strings.Repeat("x", 300_000), false)
	stuck.until("a full pipe", func() bool { return stuck.taken >= 65536 })
	if err := m.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	tty.detach() // as the link does at a capture
	m.CloseInputs()
	m.Resume()
	pipe.input(3, "late", false)
	if e := pipe.wait(); pipe.stdout() != "abcend\n" {
		t.Errorf("pipe: %+v %s", e, pipe)
	}
	<-m.Wait(stuckID)
	<-m.Wait(ttyID)
	if stuck.wait(); strings.TrimSpace(stuck.stdout()) != "0" {
		t.Errorf("%s bytes that were not read reached the program after CloseInputs", strings.TrimSpace(stuck.stdout()))
	}
	<-m.Wait(endedID)
	if ended.wait(); strings.TrimSpace(ended.stdout()) != "0" {
		t.Errorf("%s bytes of an input that had ended reached the program after CloseInputs", strings.TrimSpace(ended.stdout()))
	}
	again := attach(t, m, protocol.ExecOpen{ID: ttyID, Stdout: uint64(len(tty.stdout()))}, hostOptions{})
	if again.wait(); again.stdout() != "end\r\n" {
		t.Errorf("terminal: got %q, want its end", again.stdout())
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	s := &protocol.ExecSpec{TTY: true, Stdin: true, Rows: 30, Columns: 100, Argv: []string{"sh", "-c",
		`trap 'r=1' WINCH; tty >/dev/null && echo terminal $TERM; stty size; echo err >&2
while [ -z "$r" ]; do sleep 0.01; done; stty size; read line; echo "[$line]"; cat; exit 6`}}
	h, id := start(t, m, s)
	h.waitOutput("terminal xterm-256color\r\n30 100\r\nerr\r\n")
	h.send(protocol.ExecFrame{Resize: &protocol.ExecResize{Rows: 50, Columns: 120}})
	h.waitOutput("50 120\r\n")
	h.input(0, "word\n", false)
	h.waitOutput("[word]")
	h.input(5, "bye\n", true)
	if e := h.wait(); e.Status.Code != 6 || e.Stderr != 0 || h.stderr() != "" {
		t.Errorf("exit: %s", h)
	}
	if !strings.Contains(string(m.StderrTail(id)), "err\r\n") {
		t.Errorf("tail: %q", m.StderrTail(id))
	}
}

func TestTerminalSignalsForeground(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, _ := start(t, m, &protocol.ExecSpec{TTY: true, Stdin: true, Argv: []string{
		"bash", "--norc", "-i", "-c", `set -m; (echo in; exec sleep 1000); echo "status $?"; exit 9`}})
	h.waitOutput("in\r\n")
	h.send(protocol.ExecFrame{Signal: "SIGTERM"}) // an interactive bash ignores it, sleep does not
	h.waitOutput("status 143")
	if e := h.wait(); e.Status.Code != 9 {
		t.Errorf("exit: %+v", e)
	}
}

func TestTerminalPartialLineEnds(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, _ := start(t, m, &protocol.ExecSpec{TTY: true, Stdin: true, Argv: []string{"sh", "-c", "stty -echo; echo ready; cat; echo end"}})
	h.waitOutput("ready")
	h.input(0, "half", true)
	if h.wait(); h.stdout() != "ready\r\nhalfend\r\n" {
		t.Errorf("got %q", h.stdout())
	}
}

func TestSignalReachesGroup(t *testing.T) {
	t.Parallel()
	m := newManager(t, exec.Config{})
	h, _ := start(t, m, shell("trap 'wait; echo parent; exit 2' TERM; sh -c \"trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.01; done\" & wait; wait"))
	h.waitOutput("ready")
	h.send(protocol.ExecFrame{Signal: "TERM"})
	h.wait()
	if out := h.stdout(); out != "ready\nchild\nparent\n" {
		t.Errorf("got %q", out)
	}
}
