package admin_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// published puts a checkpoint into the store of the daemon behind a client.
func published(t *testing.T, c *admin.Client, change func(*checkpoint.Manifest)) (*checkpoint.Store, checkpoint.Manifest) {
	t.Helper()
	s, err := checkpoint.Open(filepath.Join(filepath.Dir(c.Socket()), "daemon"), checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	base := protocol.NewBaseID()
	b, err := s.BeginBase(base)
	if err == nil {
		err = errors.Join(os.WriteFile(b.RAMPath(), bytes.Repeat([]byte("ram "), 1<<18), 0o600), b.Publish(t.Context(), checkpoint.BaseManifest{ID: base}))
	}
	if err != nil {
		t.Fatal(err)
	}
	m := checkpoint.Manifest{ID: protocol.NewCheckpointID(), Class: checkpoint.ClassNamed, Created: time.Now(), Sandbox: protocol.NewSandboxID(),
		Timeline: protocol.NewTimelineID(), Line: protocol.NewLineID(), Node: "0", Freeze: 1, Base: base, Machine: checkpoint.Machine{MemoryBytes: 1 << 20, CPUs: 1}}
	if change != nil {
		change(&m)
	}
	p, err := s.Begin(m.ID)
	if err == nil {
		err = errors.Join(os.WriteFile(p.StatePath(), []byte("state"), 0o600), p.Publish(t.Context(), m))
	}
	if err == nil {
		err = s.MakeDurable(t.Context(), m.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, m
}

func wantCode(t *testing.T, err error, want protocol.Code) *protocol.Error {
	t.Helper()
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e.Code != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	return e
}

func TestTransfer(t *testing.T) {
	from, _ := serve(t)
	to, _ := another(t, noBoot)
	_, m := published(t, from, nil)
	var file bytes.Buffer
	if err := from.Export(t.Context(), m.ID, &file); err != nil {
		t.Fatal(err)
	}
	if e := wantCode(t, imported(t, to, file.Bytes()[:file.Len()-1]), protocol.CodeInvalidArgument); fmt.Sprint(e.Details["offset"]) != fmt.Sprint(file.Len()-1) {
		t.Errorf("a cut file: %+v", e)
	}
	if list, err := to.Checkpoints(t.Context(), ""); err != nil || len(list) != 0 {
		t.Fatalf("after a cut file: %+v, %v", list, err)
	}
	for range 2 {
		if err := imported(t, to, file.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	list, err := to.Checkpoints(t.Context(), "")
	if err != nil || len(list) != 1 || list[0].ID != m.ID || list[0].Sandbox != m.Sandbox || !list[0].Durable {
		t.Fatalf("%+v, %v", list, err)
	}
	// Another one of the same id.
	third, _ := another(t, noBoot)
	published(t, third, func(other *checkpoint.Manifest) { other.ID = m.ID })
	file.Reset()
	if err := third.Export(t.Context(), m.ID, &file); err != nil {
		t.Fatal(err)
	}
	wantCode(t, imported(t, to, file.Bytes()), protocol.CodeConflict)
}

func imported(t *testing.T, c *admin.Client, file []byte) error {
	t.Helper()
	_, err := c.Import(t.Context(), bytes.NewReader(file))
	return err
}

// TestImportWithKey: a key gives the same answer again for the same file, and
// without it the file may come again.
func TestImportWithKey(t *testing.T) {
	from, _ := serve(t)
	to, _ := another(t, noBoot)
	_, m := published(t, from, nil)
	var file, other bytes.Buffer
	if err := from.Export(t.Context(), m.ID, &file); err != nil {
		t.Fatal(err)
	}
	_, n := published(t, from, nil)
	if err := from.Export(t.Context(), n.ID, &other); err != nil {
		t.Fatal(err)
	}
	post := func(key string, body []byte) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://x/v1/checkpoints/import", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(admin.HeaderKey, key)
		resp, err := plain(to.Socket()).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	for i, want := range []struct {
		key      string
		body     []byte
		status   int
		replayed string
	}{
		{"a", file.Bytes()[:40], 400, ""}, // failed, so the key may be used again
		{"a", file.Bytes(), 201, ""},
		{"a", file.Bytes(), 201, "true"},
		{"a", other.Bytes(), 409, ""},
		{"b", file.Bytes(), 200, ""},
	} {
		resp := post(want.key, want.body)
		if resp.StatusCode != want.status || resp.Header.Get(admin.HeaderReplayed) != want.replayed {
			t.Errorf("request %d: %s, replayed %q; want %d, %q", i, resp.Status, resp.Header.Get(admin.HeaderReplayed), want.status, want.replayed)
		}
	}
}

func TestExportRefusals(t *testing.T) {
	c, _ := serve(t)
	wantCode(t, c.Export(t.Context(), protocol.NewCheckpointID(), &bytes.Buffer{}), protocol.CodeUnknownCheckpoint)
	wantCode(t, c.Export(t.Context(), "../x", &bytes.Buffer{}), protocol.CodeInvalidArgument)
	damage := func(path string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := errors.Join(os.Remove(path), os.WriteFile(path, b, 0o400)); err != nil {
			t.Fatal(err)
		}
	}
	// Of its own files it is told before the first byte, of the base's by a
	// stream that is cut.
	s, m := published(t, c, nil)
	base, err := s.BaseFiles(m.Base)
	if err != nil {
		t.Fatal(err)
	}
	damage(base.RAM)
	wantCode(t, c.Export(t.Context(), m.ID, &bytes.Buffer{}), protocol.CodeUnavailable)
	files, err := s.Files(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	damage(files.State)
	wantCode(t, c.Export(t.Context(), m.ID, &bytes.Buffer{}), protocol.CodeCheckpointLost)
}
