package integration_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// schemathesis is the path of the program that tests an API by its document.
func schemathesis(t *testing.T) string {
	t.Helper()
	path := filepath.Join(repository(), ".cache", "venv", "bin", "schemathesis")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err := exec.LookPath("schemathesis")
	if err != nil {
		t.Skip("schemathesis is not installed: run `make test`, or pip install -e 'python[dev]'")
	}
	return path
}

// bridge passes connections to an address on to a unix socket: schemathesis
// knows no unix sockets.
func bridge(t *testing.T, socket string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { join(near.(*net.TCPConn), socket) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

func join(near *net.TCPConn, socket string) {
	defer near.Close()
	c, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	far := c.(*net.UnixConn)
	defer far.Close()
	var back sync.WaitGroup
	back.Go(func() {
		io.Copy(near, far)
		near.Close()
	})
	io.Copy(far, near)
	far.CloseWrite()
	back.Wait()
}

// TestAPI has schemathesis ask ratoond everything that openapi.yaml allows, and
// much that it forbids: no answer differs from the document.
func TestAPI(t *testing.T) {
	t.Parallel()
	tool := schemathesis(t)
	h := startHost(t, "", "RATOON_LIMITS_SANDBOXES=2")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	data := filepath.Join(repository(), "integration", "testdata", "api")
	document := filepath.Join(repository(), "host", "admin", "openapi.yaml")
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, tool, "--config-file", filepath.Join(data, "schemathesis.toml"),
		"run", document, "--url", "http://"+bridge(t, filepath.Join(h.state, "daemon", "ratoon.sock")),
		"--max-examples", "10", "--seed", "1", "--continue-on-failure", "--no-color", "--generation-database", "none", "--suppress-health-check", "too_slow")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "SCHEMATHESIS_HOOKS="+filepath.Join(data, "hooks.py"))
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("schemathesis: %v\n%s", err, out)
	}
	if all := fmt.Sprintf("Tested: %d\n", strings.Count(string(text), "operationId:")); !strings.Contains(string(out), all) {
		t.Errorf("not all operations were tested, want %s%s", all, out)
	}
	if log := h.r.stderr.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("the daemon met errors:\n%s", log)
	}
	h.clean(t)
	h.stop(t)
}
