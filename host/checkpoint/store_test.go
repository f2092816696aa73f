package checkpoint_test

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

const page = 4096

// memoryDir is a temporary directory in memory where there is one: tests that
// fsync hundreds of times do not test the disk.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ratoon-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// ram is the content of the test base.
func ram() []byte { return bytes.Repeat([]byte("ratoon! "), 8*page/8) }

func open(t testing.TB, dir string, opt checkpoint.Options) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func code(t testing.TB, err error, want protocol.Code) *protocol.Error {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want code %s", want)
	}
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e.Code != want {
		t.Fatalf("got %v (typed: %t, code %s), want code %s", err, ok, protocol.CodeOf(err), want)
	}
	return e
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func addBase(t testing.TB, s *checkpoint.Store, from checkpoint.Origin) protocol.BaseID {
	t.Helper()
	p, err := s.BeginBase(protocol.NewBaseID())
	check(t, err)
	check(t, os.WriteFile(p.RAMPath(), ram(), 0o600))
	m := checkpoint.BaseManifest{From: from}
	if from.Template != "" {
		check(t, os.WriteFile(p.StatePath(), []byte("template state"), 0o600))
		m.Meta = []byte(`{"freeze":1}`)
	}
	id := protocol.BaseID(filepath.Base(p.RAMPath()[:strings.LastIndex(p.RAMPath(), ".")]))
	check(t, p.Publish(t.Context(), m))
	return id
}

// manifest is a valid manifest over a base, without its files.
func manifest(base protocol.BaseID) checkpoint.Manifest {
	timeline := protocol.NewTimelineID()
	return checkpoint.Manifest{
		Class: checkpoint.ClassNamed, Label: "before rm \u2028 <b>", Created: time.Now(),
		Sandbox: protocol.NewSandboxID(), Timeline: timeline, Line: protocol.NewLineID(), Node: "0.2",
		Key: protocol.Key{Timeline: timeline, Start: 1, Sequence: 9}, Freeze: 3,
		Position: protocol.Position{Stream: protocol.NewStreamID(), Sequence: 77},
		Execs:    []protocol.ExecOffsets{{ID: protocol.NewExecID(), Stdout: 10, Stderr: 2}},
		VMM:      checkpoint.VMM{Name: "qemu", Version: "7.2.9", CPUModel: "qemu64", Accel: "tcg"},
		Machine:  checkpoint.Machine{MemoryBytes: 8 * page, CPUs: 1},

		KernelDigest: "sha256:aa", InitrdDigest: "sha256:bb", ImageDigest: "sha256:cc",
		Release: "test", ProtocolVersion: protocol.Version, Base: base,
	}
}

// delta is content for a pages file and its run table.
func delta(fill byte) ([]byte, checkpoint.Runs) {
	a, b := bytes.Repeat([]byte{fill}, page), bytes.Repeat([]byte{fill, 'x'}, page)
	return append(slices.Clone(a), b...), checkpoint.Runs{
		memory.Run{Offset: 4 * page, Length: page, CRC: sum(a)},
		memory.Run{Offset: 0, Length: page, Zero: true},
		memory.Run{Offset: page, Length: 2 * page, CRC: sum(b)},
	}
}

func sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// publish makes a checkpoint with pages.
func publish(t testing.TB, s *checkpoint.Store, m checkpoint.Manifest) protocol.CheckpointID {
	t.Helper()
	id := protocol.NewCheckpointID()
	p, err := s.Begin(id)
	check(t, err)
	defer p.Discard()
	pages, runs := delta('a')
	check(t, os.WriteFile(p.StatePath(), []byte("device state"), 0o600))
	check(t, os.WriteFile(p.PagesPath(), pages, 0o600))
	m.Files.Pages.Runs = runs
	check(t, p.Publish(t.Context(), m))
	return id
}

func TestLife(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, checkpoint.Options{BootID: "boot 1"})
	base := addBase(t, s, checkpoint.Origin{Template: "k"})
	want := manifest(base)
	id := publish(t, s, want)

	got, err := s.Get(id)
	check(t, err)
	want.ID, want.Format, want.Boot, want.Created = id, checkpoint.FormatFlat, "boot 1", want.Created.UTC().Round(0)
	_, want.Files.Pages.Runs = delta('a')
	want.Files.Pages.Size = 3 * page
	want.Files.State = checkpoint.File{Size: 12, CRC32C: sum([]byte("device state"))}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("manifest (-want +got):\n%s", d)
	}
	if got.Bytes() != 12+3*page {
		t.Errorf("Bytes() = %d", got.Bytes())
	}
	check(t, s.Check(t.Context(), id))
	code(t, s.Verify(t.Context(), id), protocol.CodeInvalidArgument)

	check(t, s.MakeDurable(t.Context(), id))
	check(t, s.MakeDurable(t.Context(), id))
	check(t, s.Verify(t.Context(), id))
	durable, err := s.Get(id)
	check(t, err)
	if !durable.Durable || !strings.HasPrefix(durable.Digest, "sha256:") || len(durable.Files.Pages.SHA256) != 64 {
		t.Errorf("not durable: %+v", durable)
	}
	b, err := s.Base(base)
	check(t, err)
	if !b.Durable || len(b.RAM.SHA256) != 64 || len(b.State.SHA256) != 64 {
		t.Errorf("the base under a durable checkpoint is not durable: %+v", b)
	}

	check(t, s.SetClass(id, checkpoint.ClassAuto))
	code(t, s.SetClass(id, "../x"), protocol.CodeInvalidArgument)
	list, bad, err := open(t, dir, checkpoint.Options{ReadOnly: true}).List()
	check(t, err)
	durable.Class, durable.Files.Pages.Runs = checkpoint.ClassAuto, nil
	if d := cmp.Diff([]checkpoint.Manifest{durable}, list); d != "" || bad != nil {
		t.Errorf("List: bad %v (-want +got):\n%s", bad, d)
	}
	check(t, s.Verify(t.Context(), id))

	code(t, s.RemoveBase(base), protocol.CodeCheckpointInUse)
	check(t, s.Remove(id))
	_, err = s.Get(id)
	code(t, err, protocol.CodeUnknownCheckpoint)
	code(t, s.Remove(id), protocol.CodeUnknownCheckpoint)
	check(t, s.RemoveBase(base))
	use, err := s.Usage()
	check(t, err)
	if d := cmp.Diff(checkpoint.Usage{}, use); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
}

func TestIDsAreNoPaths(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	victim := filepath.Join(parent, "victim")
	check(t, os.WriteFile(victim, []byte("kept"), 0o600))
	s := open(t, filepath.Join(parent, "store"), checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	for _, id := range []string{"", ".", "..", "../victim", "../../victim", "cp-../../victim", "/etc/passwd", "cp-", "CP-aaaaaaaaaaaaaaaa", "cp-aaaaaaaaaaaaaaaa/..", "cp-aaaaaaaaaaaaaaa\x00", "ba-aaaaaaaaaaaaaaaa/../x"} {
		cp, ba := protocol.CheckpointID(id), protocol.BaseID(id)
		_, beginErr := s.Begin(cp)
		_, getErr := s.Get(cp)
		_, filesErr := s.Files(cp)
		_, holdErr := s.Hold(cp)
		_, depErr := s.Dependents(cp)
		_, beginBaseErr := s.BeginBase(ba)
		_, baseErr := s.Base(ba)
		_, baseFilesErr := s.BaseFiles(ba)
		_, holdBaseErr := s.HoldBase(ba)
		_, cascadeErr := s.Cascade(cp)
		_, _, openErr := s.OpenPages(cp)
		for i, err := range []error{
			beginErr, getErr, filesErr, holdErr, depErr, beginBaseErr, baseErr, baseFilesErr, holdBaseErr,
			s.MakeDurable(t.Context(), cp), s.Check(t.Context(), cp), s.Verify(t.Context(), cp), s.SetClass(cp, checkpoint.ClassAuto),
			s.Remove(cp), s.Condemn(cp, "x"), s.RemoveBase(ba), s.CheckBase(ba), s.VerifyBase(t.Context(), ba),
			s.MakeBaseDurable(t.Context(), ba), s.ImportBase(t.Context(), s, ba),
			s.Pin(t.Context(), cp), s.Unpin(cp), s.SetExpiry(cp, time.Time{}), s.Export(t.Context(), cp, io.Discard), s.Compact(t.Context(), cp),
			cascadeErr, openErr,
		} {
			if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
				t.Errorf("id %q, call %d: %v, want invalid_argument", id, i, err)
			}
		}
	}
	// Ids inside a manifest, when it is written.
	const evil = "../../victim"
	for name, change := range map[string]func(*checkpoint.Manifest){
		"sandbox":  func(m *checkpoint.Manifest) { m.Sandbox = evil },
		"timeline": func(m *checkpoint.Manifest) { m.Timeline = evil },
		"line":     func(m *checkpoint.Manifest) { m.Line = evil },
		"parent":   func(m *checkpoint.Manifest) { m.Parent = evil },
		"key":      func(m *checkpoint.Manifest) { m.Key.Timeline = evil },
		"base":     func(m *checkpoint.Manifest) { m.Base = evil },
		"stream":   func(m *checkpoint.Manifest) { m.Position.Stream = evil },
		"exec":     func(m *checkpoint.Manifest) { m.Execs[0].ID = evil },
		"node":     func(m *checkpoint.Manifest) { m.Node = "0/.." },
		"class":    func(m *checkpoint.Manifest) { m.Class = "x" },
	} {
		m := manifest(base)
		change(&m)
		p, err := s.Begin(protocol.NewCheckpointID())
		check(t, err)
		check(t, os.WriteFile(p.StatePath(), nil, 0o600))
		if err := p.Publish(t.Context(), m); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %v, want invalid_argument", name, err)
		}
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "kept" {
		t.Errorf("victim: %q, %v", b, err)
	}
	if use, err := s.Usage(); err != nil || use.Temporary.Entries+use.Checkpoints.Entries != 0 {
		t.Errorf("left: %+v, %v", use, err)
	}
}

func TestPublishRefuses(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	pages, runs := delta('a')
	for name, tc := range map[string]struct {
		prepare func(*checkpoint.Pending, *checkpoint.Manifest) error
		code    protocol.Code
	}{
		"no state":    {func(p *checkpoint.Pending, _ *checkpoint.Manifest) error { return os.Remove(p.StatePath()) }, protocol.CodeCaptureFailed},
		"no pages":    {func(p *checkpoint.Pending, _ *checkpoint.Manifest) error { return os.Remove(p.PagesPath()) }, protocol.CodeCaptureFailed},
		"short pages": {func(p *checkpoint.Pending, _ *checkpoint.Manifest) error { return os.Truncate(p.PagesPath(), page) }, protocol.CodeInvalidArgument},
		"state is a link": {func(p *checkpoint.Pending, _ *checkpoint.Manifest) error {
			return errors.Join(os.Remove(p.StatePath()), os.Symlink("/etc/passwd", p.StatePath()))
		}, protocol.CodeCaptureFailed},
		"unknown base": {func(_ *checkpoint.Pending, m *checkpoint.Manifest) error { m.Base = protocol.NewBaseID(); return nil }, protocol.CodeCheckpointLost},
		"another id": {func(_ *checkpoint.Pending, m *checkpoint.Manifest) error {
			m.ID = protocol.NewCheckpointID()
			return nil
		}, protocol.CodeInternal},
		"past the base": {func(_ *checkpoint.Pending, m *checkpoint.Manifest) error {
			m.Files.Pages.Runs[0].Offset = 8 * page
			return nil
		}, protocol.CodeCaptureFailed},
		"overlap": {func(_ *checkpoint.Pending, m *checkpoint.Manifest) error {
			m.Files.Pages.Runs[0].Offset = 2 * page
			return nil
		}, protocol.CodeInvalidArgument},
		"long label": {func(_ *checkpoint.Pending, m *checkpoint.Manifest) error {
			m.Label = strings.Repeat("x", protocol.MaxLabel+1)
			return nil
		}, protocol.CodeTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			id := protocol.NewCheckpointID()
			p, err := s.Begin(id)
			check(t, err)
			check(t, os.WriteFile(p.StatePath(), []byte("s"), 0o600))
			check(t, os.WriteFile(p.PagesPath(), pages, 0o600))
			m := manifest(base)
			m.Files.Pages.Runs = slices.Clone(runs)
			check(t, tc.prepare(p, &m))
			code(t, p.Publish(t.Context(), m), tc.code)
			if _, err := os.Stat(filepath.Dir(p.StatePath())); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("temporary directory: %v, want it gone", err)
			}
			_, err = s.Get(id)
			code(t, err, protocol.CodeUnknownCheckpoint)
		})
	}
}

func TestPublishTwice(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	id := protocol.NewCheckpointID()
	var errs []error
	var ps []*checkpoint.Pending
	for range 2 {
		p, err := s.Begin(id)
		check(t, err)
		check(t, os.WriteFile(p.StatePath(), nil, 0o600))
		ps = append(ps, p)
	}
	for _, p := range ps {
		errs = append(errs, p.Publish(t.Context(), manifest(base)))
	}
	if errs[0] != nil || !errors.Is(errs[1], os.ErrExist) {
		t.Errorf("got %v, want the second to find the first", errs)
	}
	check(t, s.Check(t.Context(), id))
	if _, err := s.Begin(id); !errors.Is(err, os.ErrExist) {
		t.Errorf("Begin of a published id: %v", err)
	}
	ps[0].Discard() // no effect
	check(t, s.Check(t.Context(), id))
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := open(t, dir, checkpoint.Options{})
	base := addBase(t, w, checkpoint.Origin{})
	id := publish(t, w, manifest(base))
	s := open(t, dir, checkpoint.Options{ReadOnly: true})
	check(t, s.Check(t.Context(), id))
	_, beginErr := s.Begin(protocol.NewCheckpointID())
	_, baseErr := s.BeginBase(protocol.NewBaseID())
	_, sweepErr := s.Sweep(nil)
	_, sweepBasesErr := s.SweepBases(nil)
	for i, err := range []error{
		beginErr, baseErr, sweepErr, sweepBasesErr, s.MakeDurable(t.Context(), id), s.SetClass(id, checkpoint.ClassAuto),
		s.Remove(id), s.Condemn(id, "x"), s.RemoveBase(base), s.MakeBaseDurable(t.Context(), base),
	} {
		if protocol.CodeOf(err) != protocol.CodeNotSupported {
			t.Errorf("call %d: %v, want not_supported", i, err)
		}
	}
	check(t, w.Check(t.Context(), id))
	_, err := checkpoint.Open(filepath.Join(dir, "none"), checkpoint.Options{ReadOnly: true})
	code(t, err, protocol.CodeNotFound)
}

func TestRoom(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), checkpoint.Options{Reserve: 1})
	check(t, s.Room(0))
	e := code(t, s.Room(1<<60), protocol.CodeDiskFull)
	if e.Details["needed"] != int64(1<<60) {
		t.Errorf("details: %v", e.Details)
	}
	code(t, open(t, t.TempDir(), checkpoint.Options{Reserve: 1 << 60}).Room(1), protocol.CodeDiskFull)
}

// TestRoomWithLimit: bases, checkpoints and what is being written count.
func TestRoomWithLimit(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{Limit: 100 * page})
	check(t, s.Room(100*page))
	publish(t, s, manifest(addBase(t, s, checkpoint.Origin{})))
	p, err := s.Begin(protocol.NewCheckpointID())
	check(t, err)
	check(t, os.WriteFile(p.PagesPath(), bytes.Repeat([]byte{1}, 16*page), 0o600))
	const used = (8+1)*page + (3+1+1)*page + 16*page
	check(t, s.Room(100*page-used))
	e := code(t, s.Room(100*page-used+1), protocol.CodeDiskFull)
	if e.Details["used"] != int64(used) || e.Details["limit"] != int64(100*page) {
		t.Errorf("details: %v", e.Details)
	}
	p.Discard()
	check(t, s.Room(100*page-used+1))
}

func TestUsage(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	publish(t, s, manifest(base))
	p, err := s.Begin(protocol.NewCheckpointID())
	check(t, err)
	check(t, os.WriteFile(p.PagesPath(), make([]byte, 16*page), 0o600))
	use, err := s.Usage()
	check(t, err)
	if use.Checkpoints.Entries != 1 || use.Bases.Entries != 1 || use.Temporary.Entries != 1 ||
		use.Checkpoints.Bytes < 3*page || use.Bases.Bytes < 8*page || use.Temporary.Bytes < 16*page {
		t.Errorf("got %+v", use)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	m := manifest(base)
	named := publish(t, s, m)
	m.Class = checkpoint.ClassInternal
	kept, loose := publish(t, s, m), publish(t, s, m)

	live, err := s.Begin(protocol.NewCheckpointID())
	check(t, err)
	dead := filepath.Join(dir, "tmp", string(protocol.NewCheckpointID())+".123")
	check(t, os.Mkdir(dead, 0o700))
	left := filepath.Join(dir, "checkpoints", string(named), "manifest.new")
	check(t, os.WriteFile(left, []byte("half"), 0o600))

	removed, err := s.Sweep(func(id protocol.CheckpointID) bool { return id == kept })
	check(t, err)
	if d := cmp.Diff([]protocol.CheckpointID{loose}, removed); d != "" {
		t.Errorf("removed (-want +got):\n%s", d)
	}
	for path, want := range map[string]bool{dead: false, left: false, filepath.Dir(live.StatePath()): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", path, err, want)
		}
	}
	check(t, s.Check(t.Context(), named))
	check(t, s.Check(t.Context(), kept))
	removed, err = s.Sweep(nil)
	if err != nil || removed != nil {
		t.Errorf("Sweep(nil) = %v, %v", removed, err)
	}
}

func TestDependents(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), checkpoint.Options{})
	root := addBase(t, s, checkpoint.Origin{Template: "t"})
	origin := publish(t, s, manifest(root))
	flat := addBase(t, s, checkpoint.Origin{Base: root, Checkpoint: origin})
	child := publish(t, s, manifest(flat))

	e := code(t, s.Remove(origin), protocol.CodeCheckpointInUse)
	want := map[string]any{"bases": []string{string(flat)}, "checkpoints": []string{string(child)}}
	if d := cmp.Diff(want, e.Details); d != "" {
		t.Errorf("details (-want +got):\n%s", d)
	}
	check(t, s.Remove(child))

	release, err := s.HoldBase(flat)
	check(t, err)
	code(t, s.RemoveBase(flat), protocol.CodeCheckpointInUse)
	code(t, s.Remove(origin), protocol.CodeCheckpointInUse)
	release()
	release()
	hold, err := s.Hold(origin)
	check(t, err)
	code(t, s.Remove(origin), protocol.CodeCheckpointInUse)
	hold()
	check(t, s.Remove(origin)) // a base that nobody uses does not keep it

	removed, err := s.SweepBases(func(m checkpoint.BaseManifest) bool { return m.From.Template == "t" })
	check(t, err)
	if d := cmp.Diff([]protocol.BaseID{flat}, removed); d != "" {
		t.Errorf("removed (-want +got):\n%s", d)
	}
	check(t, s.CheckBase(root))
}
