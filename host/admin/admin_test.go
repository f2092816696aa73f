package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// noVMM is a host without a VMM: everything but machines works. Real ones are
// driven through this API in integration/.
type noVMM struct{ vmm.Driver }

var errNoVMM = protocol.Errorf(protocol.CodeNotSupported, "this test has no machines")

func (noVMM) Info(context.Context) (vmm.Info, error) { return vmm.Info{Name: "none"}, nil }

// booting is the Boot of a daemon.
type booting = func(context.Context, func(string)) (machine.Boot, error)

func noBoot(context.Context, func(string)) (machine.Boot, error) { return machine.Boot{}, errNoVMM }

// serve starts a server on a socket of its own; with adapts it before.
func serve(t *testing.T, with ...func(*admin.Server)) (*admin.Client, *daemon.Daemon) {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	return another(t, noBoot, with...)
}

// another starts one more in the same test.
func another(t *testing.T, boot booting, with ...func(*admin.Server)) (*admin.Client, *daemon.Daemon) {
	t.Helper()
	dir, err := os.MkdirTemp("", "") // short: a socket lies in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	st, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(t.Context(), daemon.Options{Dir: st, Driver: noVMM{}, Limits: daemon.Limits{Sandboxes: 4}, Boot: boot})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := admin.NewServer(d, admin.ServerOptions{Release: "test", Audit: filepath.Join(dir, "audit")})
	for _, f := range with {
		f(srv)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	c := admin.NewClient(filepath.Join(dir, "s"))
	t.Cleanup(func() {
		c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, d
}

// plain sends requests that the client would not.
func plain(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
}

func TestRefusals(t *testing.T) {
	c, _ := serve(t)
	client := plain(c.Socket())
	sb := string(protocol.NewSandboxID())
	ex := string(protocol.NewExecID())
	for name, r := range map[string]struct {
		method, path, body, kind string
		status                   int
		code                     protocol.Code
	}{
		"no route":           {"GET", "/v1/x", "", "", 404, protocol.CodeNotFound},
		"no version":         {"GET", "/x", "", "", 404, protocol.CodeNotFound},
		"other version":      {"GET", "/v2/sandboxes", "", "", 404, protocol.CodeVersionMismatch},
		"method":             {"PATCH", "/v1/sandboxes", "", "", 405, protocol.CodeInvalidArgument},
		"no sandbox":         {"GET", "/v1/sandboxes/" + sb, "", "", 404, protocol.CodeNotFound},
		"bad sandbox":        {"GET", "/v1/sandboxes/..%2f..%2fetc", "", "", 404, protocol.CodeNotFound},
		"remove nothing":     {"DELETE", "/v1/sandboxes/" + sb, "", "", 404, protocol.CodeNotFound},
		"bad flag":           {"DELETE", "/v1/sandboxes/" + sb + "?force=maybe", "", "", 400, protocol.CodeInvalidArgument},
		"unknown field":      {"POST", "/v1/sandboxes", `{"nmae": "x"}`, "application/json", 400, protocol.CodeInvalidArgument},
		"no JSON":            {"POST", "/v1/sandboxes", `{`, "application/json", 400, protocol.CodeInvalidArgument},
		"more than a value":  {"POST", "/v1/sandboxes", `{} {}`, "application/json", 400, protocol.CodeInvalidArgument},
		"other type":         {"POST", "/v1/sandboxes", `x`, "text/plain", 400, protocol.CodeInvalidArgument},
		"too large":          {"POST", "/v1/sandboxes", `{"name": "` + strings.Repeat("x", 1<<20) + `"}`, "application/json", 413, protocol.CodeTooLarge},
		"bad name":           {"POST", "/v1/sandboxes", `{"name": "../x"}`, "application/json", 400, protocol.CodeInvalidArgument},
		"odd memory":         {"POST", "/v1/sandboxes", `{"memory_bytes": 1000}`, "application/json", 400, protocol.CodeInvalidArgument},
		"negative limit":     {"POST", "/v1/sandboxes", `{"limits": {"live": -1}}`, "application/json", 400, protocol.CodeInvalidArgument},
		"bad from":           {"POST", "/v1/sandboxes", `{"from": "../../x"}`, "application/json", 400, protocol.CodeInvalidArgument},
		"no machines":        {"POST", "/v1/sandboxes", `{}`, "application/json", 501, protocol.CodeNotSupported},
		"3e8 is whole":       {"POST", "/v1/sandboxes", `{"memory_bytes": 2.68435456E8, "cpus": 1.0}`, "application/json", 501, protocol.CodeNotSupported},
		"no redirect":        {"GET", "/v1//sandboxes", "", "", 404, protocol.CodeNotFound},
		"bad exec":           {"GET", "/v1/sandboxes/" + sb + "/execs/x/output", "", "", 400, protocol.CodeInvalidArgument},
		"exec of no sandbox": {"GET", "/v1/sandboxes/" + sb + "/execs/" + ex + "/output", "", "", 404, protocol.CodeNotFound},
		"bad checkpoint":     {"GET", "/v1/checkpoints/..", "", "", 404, protocol.CodeNotFound},
		"checkpoint id":      {"GET", "/v1/checkpoints/x", "", "", 400, protocol.CodeInvalidArgument},
		"no checkpoint":      {"GET", "/v1/checkpoints/" + string(protocol.NewCheckpointID()), "", "", 404, protocol.CodeUnknownCheckpoint},
		"drop no checkpoint": {"DELETE", "/v1/checkpoints/" + string(protocol.NewCheckpointID()), "", "", 404, protocol.CodeUnknownCheckpoint},
		"bad cursor":         {"GET", "/v1/events?cursor=-1", "", "", 400, protocol.CodeInvalidArgument},
		"cursor beyond":      {"GET", "/v1/events?cursor=99999999", "", "", 404, protocol.CodeNotFound},
		"relative path":      {"GET", "/v1/sandboxes/" + sb + "/files?path=etc", "", "", 400, protocol.CodeInvalidArgument},
		"no path":            {"PUT", "/v1/sandboxes/" + sb + "/files", "", "", 400, protocol.CodeInvalidArgument},
		"long timeout":       {"POST", "/v1/sandboxes/" + sb + "/execs", `{"argv": ["x"], "timeout": 1e300}`, "application/json", 400, protocol.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), r.method, "http://x"+r.path, strings.NewReader(r.body))
			if err != nil {
				t.Fatal(err)
			}
			if r.kind != "" {
				req.Header.Set("Content-Type", r.kind)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var e admin.Error
			if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
				t.Fatalf("%s with a body that is no error: %v", resp.Status, err)
			}
			if resp.StatusCode != r.status || e.Code != r.code || e.Message == "" || e.Remedy == "" {
				t.Fatalf("got %d %+v, want %d %s with a message and a remedy", resp.StatusCode, e, r.status, r.code)
			}
		})
	}
}

// TestKey: a request that failed may be tried again with its key, and another
// one with the same key is a conflict only after a success.
func TestKey(t *testing.T) {
	_, d := serve(t)
	runs := 0
	answer := func(status int) func() daemon.Answer {
		return func() daemon.Answer {
			runs++
			return daemon.Answer{Status: status, Body: fmt.Append(nil, runs)}
		}
	}
	ok := func(a daemon.Answer) bool { return a.Status < 300 }
	ask := func(request string, status int) (string, bool, protocol.Code) {
		a, again, err := d.Once(t.Context(), "key", request, answer(status), ok)
		return string(a.Body), again, protocol.CodeOf(err)
	}
	for i, want := range []struct {
		request string
		status  int
		body    string
		again   bool
		code    protocol.Code
	}{
		{"a", 500, "1", false, ""},
		{"a", 201, "2", false, ""},
		{"a", 201, "2", true, ""},
		{"b", 201, "", false, protocol.CodeConflict},
	} {
		body, again, code := ask(want.request, want.status)
		if body != want.body || again != want.again || code != want.code {
			t.Fatalf("request %d: %q %v %q, want %q %v %q", i, body, again, code, want.body, want.again, want.code)
		}
	}
}

// TestKeyAtOnce: of many equal requests at the same time one is run.
func TestKeyAtOnce(t *testing.T) {
	_, d := serve(t)
	var mu sync.Mutex
	runs := 0
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			a, _, err := d.Once(t.Context(), "key", "a", func() daemon.Answer {
				mu.Lock()
				defer mu.Unlock()
				runs++
				return daemon.Answer{Status: 201, Body: []byte("x")}
			}, func(daemon.Answer) bool { return true })
			if err != nil || string(a.Body) != "x" {
				t.Errorf("got %q, %v", a.Body, err)
			}
		})
	}
	all.Wait()
	if runs != 1 {
		t.Fatalf("ran %d times", runs)
	}
}

// TestListWhileOneStarts: a sandbox that has no machine yet is no failure.
func TestListWhileOneStarts(t *testing.T) {
	starting, goOn := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { goleak.VerifyNone(t) })
	c, _ := another(t, func(context.Context, func(string)) (machine.Boot, error) {
		close(starting)
		<-goOn
		return machine.Boot{}, errNoVMM
	})
	created := make(chan error, 1)
	go func() {
		_, err := c.Create(t.Context(), admin.CreateSandbox{Name: "a"}, nil)
		created <- err
	}()
	<-starting
	if all, err := c.Sandboxes(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("got %v, %v, want an empty list", all, err)
	}
	close(goOn)
	if err := <-created; protocol.CodeOf(err) != protocol.CodeNotSupported {
		t.Fatalf("got %v, want %s", err, protocol.CodeNotSupported)
	}
}

// TestEvents: the stream tells where it is, and goes on from there.
func TestEvents(t *testing.T) {
	c, _ := serve(t)
	var seen []daemon.Event
	note := func(e daemon.Event) error { seen = append(seen, e); return nil }
	if err := c.Events(t.Context(), 0, false, note); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen[0].Kind != daemon.EventDaemonStarted || seen[0].Cursor == 0 {
		t.Fatalf("got %+v, want the daemon's start", seen)
	}
	if err := c.Events(t.Context(), seen[0].Cursor, false, note); err != nil || len(seen) != 1 {
		t.Fatalf("after the last event: %v, %+v", err, seen[1:])
	}
}

// TestAudit: what may have changed something is told with who asked for it; a
// full disk does not hinder the request.
func TestAudit(t *testing.T) {
	c, _ := serve(t)
	ask := func() {
		if _, err := c.Snapshot(t.Context(), "x", admin.MakeSnapshot{}); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Fatal(err)
		}
	}
	clear := fault.Set("admin.audit", 1, fault.Error(unix.ENOSPC))
	ask()
	clear()
	ask()
	if _, err := c.Sandboxes(t.Context()); err != nil {
		t.Fatal(err)
	}
	var b []byte
	for began := time.Now(); len(b) == 0 && time.Since(began) < 10*time.Second; { // the line follows the answer
		b, _ = os.ReadFile(filepath.Join(filepath.Dir(c.Socket()), "audit"))
	}
	var e struct {
		UID          int
		PID          int
		Method, Path string
		Status       int
		Key          string
	}
	if err := json.Unmarshal(b, &e); err != nil { // one line
		t.Fatalf("%v\n%s", err, b)
	}
	if e.UID != os.Getuid() || e.PID != os.Getpid() || e.Method != "POST" || e.Path != "/v1/sandboxes/x/snapshots" || e.Status != 404 || e.Key == "" {
		t.Fatalf("got %+v", e)
	}
}

func TestMetrics(t *testing.T) {
	c, _ := serve(t)
	if _, err := c.Sandboxes(t.Context()); err != nil {
		t.Fatal(err)
	}
	resp, err := plain(c.Socket()).Get("http://x/v1/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`ratoon_requests_total{method="GET",route="/v1/sandboxes",status="200"} 1`, `ratoon_sandboxes{state="running"} 0`, "ratoon_machines 0",
		`ratoon_checkpoint_bytes{class="named"} 0`, `ratoon_info{release="test"} 1`,
	} {
		if !strings.Contains(string(b), want+"\n") {
			t.Errorf("no %s in\n%s", want, b)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	c := admin.NewClient(filepath.Join(t.TempDir(), "none"))
	defer c.Close()
	if _, err := c.Version(t.Context()); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Fatalf("got %v, want %s", err, protocol.CodeUnavailable)
	}
}

// TestOtherVersion: a daemon of another API is refused, with both versions.
func TestOtherVersion(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	for name, r := range map[string]struct {
		status int
		body   string
		want   []string
	}{
		"says so":       {200, `{"release": "9.9", "api": 9, "protocol": 9, "more": {}}`, []string{`"9.9" with API 9`, "1.0 with API 1"}},
		"has no v1":     {404, `{"code": "version_mismatch", "message": "the request is for API 1; ratoond 9.9 has API 9", "remedy": "x", "more": 1}`, []string{"ratoond 9.9 has API 9", "1.0 with API 1"}},
		"has no routes": {404, `{"code": "not_found", "message": "no such route", "remedy": "x"}`, []string{"no such route", "1.0 with API 1"}},
		"is another":    {404, `404 page not found`, []string{`release "9.9"`, "404", "1.0 with API 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			if err != nil {
				t.Fatal(err)
			}
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(admin.HeaderRelease, "9.9")
				w.WriteHeader(r.status)
				io.WriteString(w, r.body)
			})}
			go srv.Serve(l)
			defer srv.Close()
			c := admin.NewClient(l.Addr().String())
			defer c.Close()
			_, err = c.Check(t.Context(), "1.0")
			if protocol.CodeOf(err) != protocol.CodeVersionMismatch {
				t.Fatalf("got %v, want %s", err, protocol.CodeVersionMismatch)
			}
			for _, want := range r.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		})
	}
}

// TestSameVersion: the daemon of this release is not.
func TestSameVersion(t *testing.T) {
	c, _ := serve(t)
	if v, err := c.Check(t.Context(), "1.0"); err != nil || v.API != admin.API || v.Release != "test" {
		t.Fatalf("got %+v, %v", v, err)
	}
}

// TestCutStream: a stream without its last element is an error.
func TestCutStream(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.Copy(w, bytes.NewBufferString(`{"event":{"cursor":5,"time":"2026-01-01T00:00:00Z","kind":"x"}}`+"\n"))
	})}
	go srv.Serve(l)
	defer srv.Close()
	c := admin.NewClient(filepath.Join(dir, "s"))
	defer c.Close()
	err = c.Events(t.Context(), 0, false, func(daemon.Event) error { return nil })
	if protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Fatalf("got %v, want %s", err, protocol.CodeUnavailable)
	}
}
