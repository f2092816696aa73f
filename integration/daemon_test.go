package integration_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/sandbox"
)

// host is a running ratoond.
type host struct {
	state string
	r     *running
}

// startHost starts ratoond on a state directory; "": one of its own.
func startHost(t testing.TB, state string, env ...string) *host {
	t.Helper()
	if state == "" {
		state = privateState(t)
	}
	h := &host{state: state}
	h.r = start(t, options{command: filepath.Join(filepath.Dir(command(t)), "ratoond"), state: state, args: []string{"--llm", "echo", "--log-level", "info"}, env: env})
	if _, ok := h.r.stderr.await("msg=ready", h.r.done); !ok {
		t.Fatalf("ratoond did not become ready:\n%s", h.r.stderr)
	}
	return h
}

// kill ends it as a crash does.
func (h *host) kill(t testing.TB) {
	t.Helper()
	if err := h.r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-h.r.done
}

// stop ends it as an operator does.
func (h *host) stop(t testing.TB) {
	t.Helper()
	if err := h.r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := h.r.wait(t); r.status != 0 {
		t.Fatalf("ratoond ended with status %d, signal %v\n%s", r.status, r.signal, r.stderr)
	}
}

// run runs ratoon with this host.
func (h *host) run(t testing.TB, args ...string) result {
	t.Helper()
	return run(t, options{state: h.state, args: args})
}

// want is run for commands that succeed; it returns what they print, without
// the last newline.
func (h *host) want(t testing.TB, args ...string) string {
	t.Helper()
	r := h.run(t, args...)
	if r.status != 0 {
		t.Fatalf("ratoon %s: status %d\n%s%s", strings.Join(args, " "), r.status, r.stdout, r.stderr)
	}
	return strings.TrimSuffix(r.stdout, "\n")
}

// read decodes what a command prints as JSON.
func (h *host) read(t testing.TB, v any, args ...string) {
	t.Helper()
	if err := json.Unmarshal([]byte(h.want(t, append(args, "-o", "json")...)), v); err != nil {
		t.Fatalf("ratoon %s: %v", strings.Join(args, " "), err)
	}
}

func (h *host) info(t testing.TB, name string) (out daemon.Info) {
	t.Helper()
	h.read(t, &out, "sandbox", "show", name)
	return out
}

// await waits until the sandbox is in a state.
func (h *host) await(t testing.TB, name, state string) {
	t.Helper()
	end := time.Now().Add(deadline)
	for h.info(t, name).State != state {
		if time.Now().After(end) {
			t.Fatalf("sandbox %s is %s, want %s", name, h.info(t, name).State, state)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestDaemon uses a sandbox as an operator does.
func TestDaemon(t *testing.T) {
	t.Parallel()
	h := startHost(t, "")
	id := h.want(t, "sandbox", "new", "--name", "web")
	if got := h.info(t, "web"); string(got.ID) != id || got.State != "running" || got.Live != 1 {
		t.Fatalf("a new sandbox is %+v", got)
	}
	t.Run("exec", func(t *testing.T) {
		r := run(t, options{state: h.state, stdin: "in\n", args: []string{"exec", "web", "-e", "A=b", "--", "sh", "-c", "cat; echo $A; echo err >&2; exit 3"}})
		if r.status != 3 || r.stdout != "in\nb\n" || r.stderr != "err\n" {
			t.Fatalf("status %d, stdout %q, stderr %q", r.status, r.stdout, r.stderr)
		}
		if r := h.run(t, "exec", id, "--", "no-such-program"); r.status != 127 {
			t.Fatalf("a program that is not there: status %d\n%s", r.status, r.stderr)
		}
		if r := h.run(t, "exec", "web", "--", "sh", "-c", "kill -9 $$"); r.status != 128+9 {
			t.Fatalf("a killed program: status %d", r.status)
		}
		if r := h.run(t, "exec", "web", "--timeout", "100ms", "--", "sleep", "60"); r.status != 124 {
			t.Fatalf("after the timeout: status %d", r.status)
		}
	})
	t.Run("signal", func(t *testing.T) {
		r := start(t, options{state: h.state, args: []string{"exec", "web", "--", "sh", "-c", "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.1; done"}})
		r.await(t, "ready")
		r.cmd.Process.Signal(syscall.SIGINT)
		if got := r.wait(t); got.status != 5 || got.stdout != "ready\ncaught\n" {
			t.Fatalf("status %d, %q", got.status, got.stdout)
		}
	})
	t.Run("detach and attach", func(t *testing.T) {
		ex := h.want(t, "exec", "web", "-d", "--", "sh", "-c", "echo one; sleep 1; echo two; exit 4")
		r := h.run(t, "sandbox", "attach", "web", ex)
		if r.status != 4 || r.stdout != "one\ntwo\n" {
			t.Fatalf("status %d, %q", r.status, r.stdout)
		}
		if got := h.want(t, "sandbox", "logs", "web", ex); got != "one\ntwo" {
			t.Fatalf("logs: %q", got)
		}
	})
	t.Run("files", func(t *testing.T) {
		dir := t.TempDir()
		os.Mkdir(filepath.Join(dir, "d"), 0o755)
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "d", "a"), []byte("A"), 0o640), os.Symlink("a", filepath.Join(dir, "d", "l"))); err != nil {
			t.Fatal(err)
		}
		h.want(t, "sandbox", "cp", filepath.Join(dir, "d"), "web:/workspace")
		if got := h.want(t, "exec", "web", "--", "sh", "-c", "cd /workspace/d && stat -c '%n %a' a && readlink l"); got != "a 640\na" {
			t.Fatalf("in the guest: %q", got)
		}
		h.want(t, "sandbox", "cp", "web:/workspace/d", filepath.Join(dir, "back"))
		if got, err := os.ReadFile(filepath.Join(dir, "back", "l")); string(got) != "A" {
			t.Fatalf("back: %q, %v", got, err)
		}
		h.want(t, "sandbox", "cp", "web:/workspace/d/a", filepath.Join(dir, "b"))
		if got, err := os.ReadFile(filepath.Join(dir, "b")); string(got) != "A" {
			t.Fatalf("one file: %q, %v", got, err)
		}
		if r := h.run(t, "sandbox", "cp", "web:/no/such", dir); r.status != 2 {
			t.Fatalf("what is not there: status %d\n%s", r.status, r.stderr)
		}
	})
	t.Run("snapshot and restore", func(t *testing.T) {
		h.want(t, "exec", "web", "--", "sh", "-c", "echo before >/workspace/f")
		cp := h.want(t, "snapshot", "web", "--label", "clean")
		follow := start(t, options{state: h.state, args: []string{"exec", "web", "--", "sh", "-c", "echo x >/workspace/g; echo begun; sleep 600"}})
		follow.await(t, "begun")
		h.want(t, "restore", "web", cp)
		if got := h.want(t, "exec", "web", "--", "sh", "-c", "cat /workspace/f; ls /workspace"); !strings.HasPrefix(got, "before\n") || strings.Contains(got, "g") {
			t.Fatalf("after the restore: %q", got)
		}
		follow.cmd.Process.Signal(syscall.SIGHUP)
		follow.wait(t)
		if r := h.run(t, "restore", "web", "cp-aaaaaaaaaaaaaaaa"); r.status != 2 {
			t.Fatalf("an unknown checkpoint: status %d\n%s", r.status, r.stderr)
		}
	})
	t.Run("branch", func(t *testing.T) {
		h.want(t, "branch", "web", "2")
		if a, b := h.want(t, "exec", "web", "--node", "0.0", "--", "hostname"), h.want(t, "exec", "web", "--node", "0.1", "--", "hostname"); a == b {
			t.Fatalf("both children are called %s", a)
		}
		if got := h.info(t, "web").Live; got != 3 {
			t.Fatalf("%d machines, want 3", got)
		}
		if tree := h.want(t, "tree", "web"); !strings.Contains(tree, "0.1  live") {
			t.Fatalf("tree:\n%s", tree)
		}
	})
	t.Run("from a checkpoint", func(t *testing.T) {
		var all []struct{ ID, Label string }
		h.read(t, &all, "checkpoint", "ls")
		i := slices.IndexFunc(all, func(c struct{ ID, Label string }) bool { return c.Label == "clean" })
		if i < 0 {
			t.Fatalf("no checkpoint in %+v", all)
		}
		other := h.want(t, "sandbox", "new", "--from", all[i].ID)
		if got := h.want(t, "exec", other, "--", "cat", "/workspace/f"); got != "before" {
			t.Fatalf("in a sandbox made from it: %q", got)
		}
		if r := h.run(t, "rm", other); r.status == 0 {
			t.Fatal("a running sandbox was removed without force")
		}
		h.want(t, "rm", "-f", other)
		if r := h.run(t, "sandbox", "show", other); r.status != 2 {
			t.Fatalf("a removed one: status %d", r.status)
		}
	})
	t.Run("events", func(t *testing.T) {
		events := h.want(t, "events")
		for _, kind := range []sandbox.EventKind{daemon.EventCreated, daemon.EventExecStarted, daemon.EventExecEnded, sandbox.EventCheckpoint, sandbox.EventTimelineStarted, daemon.EventRemoved} {
			if !strings.Contains(events, string(kind)) {
				t.Errorf("no event %s", kind)
			}
		}
	})
	t.Run("names", func(t *testing.T) {
		if r := h.run(t, "sandbox", "new", "--name", "web"); r.status == 0 || !strings.Contains(r.stderr, "web") {
			t.Fatalf("a second one with the name: status %d\n%s", r.status, r.stderr)
		}
		h.want(t, "rm", "-f", "web")
		if got := h.want(t, "sandbox", "ls", "-o", "json"); got != "[]" {
			t.Fatalf("left: %s", got)
		}
	})
	second := run(t, options{command: h.r.cmd.Path, state: h.state, args: []string{}})
	if second.status == 0 || !strings.Contains(second.stderr, "another ratoond") {
		t.Fatalf("a second daemon on the same directory: status %d\n%s", second.status, second.stderr)
	}
	h.stop(t)
	if r := h.run(t, "ls"); r.status != 125 || !strings.Contains(r.stderr, "no ratoond answers") {
		t.Fatalf("without a daemon: status %d\n%s", r.status, r.stderr)
	}
}
