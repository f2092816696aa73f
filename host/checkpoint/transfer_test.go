package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/checkpoint/exportfile"
	"github.com/ratoon-project/ratoon/protocol"
)

// guestMemory is what a machine loaded from a checkpoint would have.
func guestMemory(t rapid.TB, s *checkpoint.Store, id protocol.CheckpointID) []byte {
	t.Helper()
	out, err := readMemory(s, id)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readMemory(s *checkpoint.Store, id protocol.CheckpointID) (out []byte, err error) {
	m, pages, err := s.OpenPages(id)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pages.Close()) }()
	base, err := s.BaseFiles(m.Base)
	if err != nil {
		return nil, err
	}
	if out, err = os.ReadFile(base.RAM); err != nil {
		return nil, err
	}
	r := pages.Reader()
	for _, run := range m.Files.Pages.Runs {
		to := out[run.Offset : run.Offset+run.Length]
		if run.Zero {
			clear(to)
			continue
		}
		if _, err := io.ReadFull(r, to); err != nil {
			return nil, err
		}
		if sum(to) != run.CRC {
			return nil, fmt.Errorf("run at %#x has another crc32c", run.Offset)
		}
	}
	return out, nil
}

func export(t testing.TB, s *checkpoint.Store, id protocol.CheckpointID) []byte {
	t.Helper()
	var file bytes.Buffer
	check(t, s.Export(t.Context(), id, &file))
	return file.Bytes()
}

func TestExport(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		from := open(t, memoryDir(t), checkpoint.Options{BootID: "1"})
		m := manifest(addBase(t, from, checkpoint.Origin{Template: "k"}))
		m.Class = checkpoint.ClassAuto
		id := publish(t, from, m)
		if durable {
			check(t, from.MakeDurable(t.Context(), id))
		}
		file := export(t, from, id)
		to := open(t, memoryDir(t), checkpoint.Options{BootID: "2"})
		got, fresh, err := to.ImportFile(t.Context(), bytes.NewReader(file))
		if err != nil || !fresh {
			t.Fatalf("fresh %t, %v", fresh, err)
		}
		want, err := from.Get(id)
		check(t, err)
		want.Class, want.Boot = checkpoint.ClassNamed, "2"
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(checkpoint.Manifest{}, "Durable", "Digest"), cmpopts.IgnoreFields(checkpoint.File{}, "SHA256"),
			cmpopts.IgnoreFields(checkpoint.Pages{}, "SHA256")); d != "" {
			t.Errorf("manifest (-want +got):\n%s", d)
		}
		if durable && want.Digest != got.Digest {
			t.Errorf("digest %s, want %s", got.Digest, want.Digest)
		}
		check(t, to.Verify(t.Context(), id))
		if !bytes.Equal(guestMemory(t, from, id), guestMemory(t, to, id)) {
			t.Error("another memory than before")
		}
		base, err := to.Base(got.Base)
		check(t, err)
		if base.From != (checkpoint.Origin{}) || base.State != nil || !base.Durable {
			t.Errorf("base: %+v; want it durable, and nobody's", base)
		}
		// Again, also of what came here by a file itself.
		for _, again := range [][]byte{file, export(t, to, id)} {
			if _, fresh, err := to.ImportFile(t.Context(), bytes.NewReader(again)); fresh || err != nil {
				t.Errorf("again: fresh %t, %v", fresh, err)
			}
			if _, fresh, err := from.ImportFile(t.Context(), bytes.NewReader(again)); fresh || err != nil {
				t.Errorf("where it came from: fresh %t, %v", fresh, err)
			}
		}
		check(t, checkpoint.Same(t.Context(), from, to, id))
		tidy(t, to)
	}
}

// tidy tells that nothing temporary was left.
func tidy(t testing.TB, s *checkpoint.Store) {
	t.Helper()
	use, err := s.Usage()
	if err != nil || use.Temporary.Entries != 0 {
		t.Errorf("left: %+v, %v", use.Temporary, err)
	}
}

// nothing tells that nothing was published.
func nothing(t testing.TB, s *checkpoint.Store) {
	t.Helper()
	use, err := s.Usage()
	if err != nil || use != (checkpoint.Usage{}) {
		t.Errorf("left: %+v, %v", use, err)
	}
}

// TestExportKeepsHoles: a base that is mostly holes stays so.
func TestExportKeepsHoles(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	from, to := open(t, memoryDir(t), checkpoint.Options{}), open(t, memoryDir(t), checkpoint.Options{})
	p, err := from.BeginBase(protocol.NewBaseID())
	check(t, err)
	f, err := os.Create(p.RAMPath())
	check(t, err)
	_, err = f.WriteAt([]byte("in the midst"), size/2)
	check(t, errors.Join(err, f.Truncate(size), f.Close()))
	base := protocol.BaseID(filepath.Base(filepath.Dir(p.RAMPath()))[:19])
	check(t, p.Publish(t.Context(), checkpoint.BaseManifest{}))
	m := manifest(base)
	m.Machine.MemoryBytes = size
	id := publish(t, from, m)
	file := export(t, from, id)
	if len(file) > 64<<10 {
		t.Errorf("%d bytes for a few pages", len(file))
	}
	_, _, err = to.ImportFile(t.Context(), bytes.NewReader(file))
	check(t, err)
	if !bytes.Equal(guestMemory(t, from, id), guestMemory(t, to, id)) {
		t.Error("another memory than before")
	}
	if use, err := to.Usage(); err != nil || use.Bases.Bytes > 1<<20 {
		t.Errorf("%+v, %v", use, err)
	}
}

// TestImportConflict: an id has one content for ever.
func TestImportConflict(t *testing.T) {
	t.Parallel()
	from, to := open(t, memoryDir(t), checkpoint.Options{}), open(t, memoryDir(t), checkpoint.Options{})
	base := addBase(t, from, checkpoint.Origin{})
	m := manifest(base)
	m.ID = publish(t, from, m)
	_, _, err := to.ImportFile(t.Context(), bytes.NewReader(export(t, from, m.ID)))
	check(t, err)
	before := guestMemory(t, to, m.ID)
	for name, change := range map[string]func(*checkpoint.Manifest, []byte, []byte){
		"memory":       func(_ *checkpoint.Manifest, _, pages []byte) { pages[0]++ },
		"device state": func(_ *checkpoint.Manifest, state, _ []byte) { state[0]++ },
		"node":         func(m *checkpoint.Manifest, _, _ []byte) { m.Node = "0.7" },
	} {
		other := open(t, memoryDir(t), checkpoint.Options{})
		check(t, other.ImportBase(t.Context(), from, base))
		p, err := other.Begin(m.ID)
		check(t, err)
		pages, _ := delta('a')
		state := []byte("device state")
		x := m
		change(&x, state, pages)
		x.Files.Pages.Runs = runsOf(pages)
		check(t, errors.Join(os.WriteFile(p.StatePath(), state, 0o600), os.WriteFile(p.PagesPath(), pages, 0o600), p.Publish(t.Context(), x)))
		_, _, err = to.ImportFile(t.Context(), bytes.NewReader(export(t, other, m.ID)))
		if e := code(t, err, protocol.CodeConflict); !strings.Contains(e.Error(), name) && name != "node" {
			t.Errorf("%s: %v", name, e)
		}
		code(t, checkpoint.Same(t.Context(), other, to, m.ID), protocol.CodeConflict)
	}
	// Another base under the same id.
	other := open(t, memoryDir(t), checkpoint.Options{})
	p, err := other.BeginBase(base)
	check(t, err)
	check(t, errors.Join(os.WriteFile(p.RAMPath(), make([]byte, 8*page), 0o600), p.Publish(t.Context(), checkpoint.BaseManifest{})))
	_, _, err = to.ImportFile(t.Context(), bytes.NewReader(export(t, other, publish(t, other, manifest(base)))))
	code(t, err, protocol.CodeConflict)

	if !bytes.Equal(before, guestMemory(t, to, m.ID)) {
		t.Error("a conflict changed what was here")
	}
	check(t, to.Verify(t.Context(), m.ID))
	tidy(t, to)
}

// runsOf is the run table of delta over other pages.
func runsOf(pages []byte) checkpoint.Runs {
	_, runs := delta('a')
	runs[0].CRC, runs[2].CRC = sum(pages[:page]), sum(pages[page:])
	return runs
}

// TestImportLost: a checkpoint that a boot of the host has cost comes back.
func TestImportLost(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	id := publish(t, s, manifest(addBase(t, s, checkpoint.Origin{})))
	file := export(t, s, id)
	check(t, s.Condemn(id, "power cut"))
	_, err := s.Get(id)
	code(t, err, protocol.CodeCheckpointLost)
	_, fresh, err := s.ImportFile(t.Context(), bytes.NewReader(file))
	if err != nil || !fresh {
		t.Fatalf("fresh %t, %v", fresh, err)
	}
	check(t, s.Verify(t.Context(), id))
	check(t, s.Remove(id))
	_, err = s.Get(id)
	code(t, err, protocol.CodeUnknownCheckpoint)
}

// TestImportDamaged: whatever is cut or flipped, nothing is published. What
// exportfile finds by itself is tested there at each bit.
func TestImportDamaged(t *testing.T) {
	t.Parallel()
	from := open(t, memoryDir(t), checkpoint.Options{})
	file := export(t, from, publish(t, from, manifest(addBase(t, from, checkpoint.Origin{}))))
	to := open(t, memoryDir(t), checkpoint.Options{})
	rapid.Check(t, func(rt *rapid.T) {
		bad := bytes.Clone(file)
		if rapid.Bool().Draw(rt, "cut") {
			bad = bad[:rapid.IntRange(0, len(bad)-1).Draw(rt, "length")]
		} else {
			bad[rapid.IntRange(0, len(bad)-1).Draw(rt, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		}
		_, _, err := to.ImportFile(context.Background(), bytes.NewReader(bad))
		e, ok := errors.AsType[*protocol.Error](err)
		if !ok || e.Code != protocol.CodeInvalidArgument && e.Code != protocol.CodeCheckpointRefused || e.Details["offset"] == nil {
			rt.Fatalf("%v, want it refused at an offset", err)
		}
		nothing(t, to)
	})
}

// TestImportHostile holds files with right checksums and content that no
// release writes.
func TestImportHostile(t *testing.T) {
	t.Parallel()
	from := open(t, memoryDir(t), checkpoint.Options{})
	file := export(t, from, publish(t, from, manifest(addBase(t, from, checkpoint.Origin{}))))
	var whole []exportfile.Content
	for r := exportfile.NewReader(bytes.NewReader(file)); ; {
		c, err := r.Next()
		if err == io.EOF {
			break
		}
		check(t, err)
		c.Bytes = bytes.Clone(c.Bytes)
		whole = append(whole, c)
	}
	for name, change := range map[string]func(c *exportfile.Content){
		"a path for an id":     edit(exportfile.Manifest, func(m map[string]any) { m["id"] = "cp-../../../../x" }),
		"a path for a sandbox": edit(exportfile.Manifest, func(m map[string]any) { m["sandbox"] = "/etc" }),
		"a path for a base":    edit(exportfile.Base, func(m map[string]any) { m["id"] = "../../bases/x" }),
		"another base":         edit(exportfile.Base, func(m map[string]any) { m["id"] = protocol.NewBaseID() }),
		"a huge base":          edit(exportfile.Base, func(m map[string]any) { m["ram"] = map[string]any{"size": int64(1) << 62} }),
		"a small base":         edit(exportfile.Base, func(m map[string]any) { m["ram"] = map[string]any{"size": page} }),
		"a huge machine": edit(exportfile.Manifest, func(m map[string]any) {
			m["machine"] = map[string]any{"memory_bytes": int64(1) << 62, "cpus": 1}
		}),
		"a huge state": edit(exportfile.Manifest, func(m map[string]any) {
			m["files"].(map[string]any)["state"] = map[string]any{"size": int64(math.MaxInt64), "crc32c": 0}
		}),
		"huge pages": edit(exportfile.Manifest, func(m map[string]any) {
			m["files"].(map[string]any)["pages"] = map[string]any{"size": int64(1) << 62, "runs": []any{[]int64{0, 1 << 62, 7}}}
		}),
		"another crc": edit(exportfile.Manifest, func(m map[string]any) {
			m["files"].(map[string]any)["state"].(map[string]any)["crc32c"] = 1
		}),
		"a longer state": edit(exportfile.Manifest, func(m map[string]any) {
			m["files"].(map[string]any)["state"].(map[string]any)["size"] = 13
		}),
		"another digest": edit(exportfile.Manifest, func(m map[string]any) { m["durable"], m["digest"] = true, "sha256:00" }),
		"no manifest": func(c *exportfile.Content) {
			if c.Part == exportfile.Manifest {
				c.Bytes = nil
			}
		},
		"no base": func(c *exportfile.Content) {
			if c.Part == exportfile.Base {
				c.Bytes = nil
			}
		},
		"no state": func(c *exportfile.Content) {
			if c.Part == exportfile.State {
				c.Bytes = nil
			}
		},
		"short pages": func(c *exportfile.Content) {
			if c.Part == exportfile.Pages {
				c.Bytes = c.Bytes[:100]
			}
		},
		"long pages": func(c *exportfile.Content) {
			if c.Part == exportfile.Pages {
				c.Bytes = append(c.Bytes, 1)
			}
		},
		"other pages": func(c *exportfile.Content) {
			if c.Part == exportfile.Pages {
				c.Bytes[3]++
			}
		},
		"RAM beyond its end": func(c *exportfile.Content) {
			if c.Part == exportfile.RAM {
				c.Offset = 8*page - 1
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var bad bytes.Buffer
			w := exportfile.NewWriter(&bad)
			for _, c := range whole {
				c.Bytes = bytes.Clone(c.Bytes)
				change(&c)
				check(t, w.Write(c.Part, c.Offset, c.Bytes))
			}
			check(t, w.Close())
			to := open(t, memoryDir(t), checkpoint.Options{})
			_, _, err := to.ImportFile(t.Context(), &bad)
			if e := code(t, err, protocol.CodeInvalidArgument); e.Details["offset"] == nil {
				t.Errorf("%v does not say where", err)
			}
			nothing(t, to)
		})
	}
}

// edit changes a manifest in a file, and gives it a right header.
func edit(part exportfile.Part, change func(map[string]any)) func(*exportfile.Content) {
	return func(c *exportfile.Content) {
		if c.Part != part {
			return
		}
		line, body, _ := bytes.Cut(c.Bytes, []byte("\n"))
		var m map[string]any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			panic(err)
		}
		change(m)
		body, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		kind := "checkpoint"
		if bytes.Contains(line, []byte(`"base"`)) {
			kind = "base"
		}
		body = append(body, '\n')
		c.Bytes = append(fmt.Appendf(nil, `{"ratoon":%q,"format":1,"size":%d,"crc32c":%d}`+"\n", kind, len(body), sum(body)), body...)
	}
}

// TestExportOfDamage: a damaged checkpoint gives no file that could be
// imported.
func TestExportOfDamage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"state", "pages", "ram"} {
		s := open(t, memoryDir(t), checkpoint.Options{})
		base := addBase(t, s, checkpoint.Origin{})
		id := publish(t, s, manifest(base))
		check(t, s.MakeDurable(t.Context(), id))
		files, err := s.Files(id)
		check(t, err)
		baseFiles, err := s.BaseFiles(base)
		check(t, err)
		path := map[string]string{"state": files.State, "pages": files.Pages, "ram": baseFiles.RAM}[name]
		data, err := os.ReadFile(path)
		check(t, err)
		data[len(data)/2] ^= 4
		overwrite(t, path, data)
		var file bytes.Buffer
		if e := code(t, s.Export(t.Context(), id, &file), protocol.CodeCheckpointLost); e.Details["file"] != name {
			t.Errorf("%s: %v", name, e)
		}
		to := open(t, memoryDir(t), checkpoint.Options{})
		_, _, err = to.ImportFile(t.Context(), &file)
		code(t, err, protocol.CodeInvalidArgument)
		nothing(t, to)
	}
}

// TestExportToNowhere: a failure to write is none of the checkpoint.
func TestExportToNowhere(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	id := publish(t, s, manifest(addBase(t, s, checkpoint.Origin{})))
	gone := errors.New("gone")
	for n := range 6 {
		err := s.Export(t.Context(), id, &failing{n, gone})
		if !errors.Is(err, gone) || protocol.CodeOf(err) != protocol.CodeInternal {
			t.Errorf("after %d writes: %v (code %s)", n, err, protocol.CodeOf(err))
		}
	}
}

// failing is a writer that fails after some writes.
type failing struct {
	left int
	err  error
}

func (f *failing) Write(b []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, f.err
	}
	return len(b), nil
}

// TestImportAtOnce: of many imports of one file one is the first.
func TestImportAtOnce(t *testing.T) {
	t.Parallel()
	from, to := open(t, memoryDir(t), checkpoint.Options{}), open(t, memoryDir(t), checkpoint.Options{})
	id := publish(t, from, manifest(addBase(t, from, checkpoint.Origin{})))
	file := export(t, from, id)
	errs := make(chan error)
	for range 8 {
		go func() {
			_, _, err := to.ImportFile(context.Background(), bytes.NewReader(file))
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	check(t, to.Verify(t.Context(), id))
	tidy(t, to)
	list, bad, err := to.List()
	if len(list) != 1 || !slices.Equal(bad, nil) || err != nil {
		t.Errorf("%d listed, %v, %v", len(list), bad, err)
	}
}
