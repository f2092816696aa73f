package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

const window = 64 << 10

// guest is a made-up guest whose memory changes between checkpoints.
type guest struct {
	s      *checkpoint.Store
	rand   *rand.Rand
	m      checkpoint.Manifest
	ram    []byte // of the base
	memory []byte
	made   time.Time
}

// newGuest starts one over a template of so many bytes.
func newGuest(t rapid.TB, s *checkpoint.Store, size int, seed uint64) *guest {
	t.Helper()
	g := &guest{s: s, rand: rand.New(rand.NewPCG(seed, 1)), made: time.Date(2026, 12, 7, 0, 0, 0, 0, time.UTC)}
	g.ram = make([]byte, size)
	for at := 0; at < size; at += page {
		if g.rand.IntN(3) > 0 {
			g.fill(g.ram[at : at+page])
		}
	}
	g.memory = bytes.Clone(g.ram)
	g.m = manifest(g.base(t, checkpoint.Origin{Template: "k"}))
	g.m.Machine.MemoryBytes = int64(size)
	return g
}

// fill makes a page that compresses somewhat, as memory does.
func (g *guest) fill(p []byte) {
	for i := range len(p) / 2 {
		p[i] = byte(g.rand.Uint32())
	}
}

// base makes one of the RAM.
func (g *guest) base(t rapid.TB, from checkpoint.Origin) protocol.BaseID {
	t.Helper()
	id := protocol.NewBaseID()
	p, err := g.s.BeginBase(id)
	if err == nil {
		err = errors.Join(os.WriteFile(p.RAMPath(), g.ram, 0o600), p.Publish(context.Background(), checkpoint.BaseManifest{ID: id, From: from}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// write changes n pages anywhere: to something new, to zeros, or back to what
// the base has.
func (g *guest) write(n int) {
	for range n {
		at := g.rand.IntN(len(g.memory)/page) * page
		p := g.memory[at : at+page]
		switch g.rand.IntN(8) {
		case 0:
			clear(p)
		case 1:
			copy(p, g.ram[at:])
		default:
			g.fill(p)
		}
	}
}

// snapshot publishes the memory as a delta since the base.
func (g *guest) snapshot(t rapid.TB) protocol.CheckpointID {
	t.Helper()
	id := protocol.NewCheckpointID()
	p, err := g.s.Begin(id)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Discard()
	var pages []byte
	var runs checkpoint.Runs
	for at := 0; at < len(g.memory); at += page {
		now := g.memory[at : at+page]
		if bytes.Equal(now, g.ram[at:at+page]) {
			continue
		}
		r := memory.Run{Offset: int64(at), Length: page, Zero: bytes.Equal(now, make([]byte, page))}
		if !r.Zero {
			r.CRC = sum(now)
			pages = append(pages, now...)
		}
		runs = append(runs, r)
	}
	g.made = g.made.Add(time.Minute)
	m := g.m
	m.Created, m.Files.Pages.Runs = g.made, runs
	if err := errors.Join(os.WriteFile(p.StatePath(), []byte("device state"), 0o600), os.WriteFile(p.PagesPath(), pages, 0o600), p.Publish(context.Background(), m)); err != nil {
		t.Fatal(err)
	}
	return id
}

// rebase makes the memory at a checkpoint the base from here on.
func (g *guest) rebase(t rapid.TB, at protocol.CheckpointID) {
	t.Helper()
	g.ram = bytes.Clone(g.memory)
	g.m.Base = g.base(t, checkpoint.Origin{Base: g.m.Base, Checkpoint: at})
}

func compact(t rapid.TB, s *checkpoint.Store, id protocol.CheckpointID) {
	t.Helper()
	if err := errors.Join(s.MakeDurable(context.Background(), id), s.Compact(context.Background(), id)); err != nil {
		t.Fatal(err)
	}
}

// TestCompact: whatever is snapshot, compacted, removed, collected and moved to
// another base, in whatever order, each checkpoint that is left has the memory
// it was made with, byte for byte, and is put together from few objects.
func TestCompact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("/dev/shm", "ratoon-test-")
		if err != nil {
			dir, err = os.MkdirTemp("", "")
		}
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s, err := checkpoint.Open(dir, checkpoint.Options{})
		if err != nil {
			t.Fatal(err)
		}
		g := newGuest(t, s, 6*window+3*page, rapid.Uint64().Draw(t, "seed"))
		want := map[protocol.CheckpointID][]byte{}
		var ids []protocol.CheckpointID
		one := func() protocol.CheckpointID { return ids[rapid.IntRange(0, len(ids)-1).Draw(t, "which")] }
		snapshot := func(t *rapid.T) {
			g.write(rapid.IntRange(0, 30).Draw(t, "pages"))
			id := g.snapshot(t)
			want[id], ids = bytes.Clone(g.memory), append(ids, id)
		}
		snapshot(t)
		t.Repeat(map[string]func(*rapid.T){
			"snapshot": snapshot,
			"rebase": func(t *rapid.T) {
				if id := ids[len(ids)-1]; bytes.Equal(want[id], g.memory) {
					g.rebase(t, id)
				}
			},
			"restore": func(t *rapid.T) { // a timeline of its own, over the same base
				id := one()
				if m, err := s.Get(id); err != nil || m.Files.Frames != nil || m.Base != g.m.Base {
					return
				}
				g.memory = bytes.Clone(want[id])
				g.m.Timeline, g.m.Parent = protocol.NewTimelineID(), id
			},
			"compact": func(t *rapid.T) { compact(t, s, one()) },
			"compact many": func(t *rapid.T) {
				for _, id := range ids {
					compact(t, s, id)
				}
			},
			"remove": func(t *rapid.T) {
				id := one()
				if len(ids) == 1 {
					return
				}
				if err := s.Remove(id); protocol.CodeOf(err) == protocol.CodeCheckpointInUse {
					return
				} else if err != nil {
					t.Fatal(err)
				}
				delete(want, id)
				ids = slices.DeleteFunc(ids, func(o protocol.CheckpointID) bool { return o == id })
			},
			"collect": func(t *rapid.T) {
				c, err := s.Collect(context.Background(), checkpoint.CollectOptions{KeepBase: func(m checkpoint.BaseManifest) bool { return m.ID == g.m.Base }})
				if err != nil || len(c.Checkpoints) > 0 {
					t.Fatalf("collected %+v, %v", c, err)
				}
			},
			"import": func(t *rapid.T) {
				other, err := checkpoint.Open(filepath.Join(dir, "other"), checkpoint.Options{})
				if err != nil {
					t.Fatal(err)
				}
				id := one()
				m, err := s.Get(id)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(other.ImportBase(context.Background(), s, m.Base), other.Import(context.Background(), s, id)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(guestMemory(t, other, id), want[id]) {
					t.Fatal("another memory in the other store")
				}
				if err := errors.Join(other.MakeDurable(context.Background(), id), other.Verify(context.Background(), id)); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				for id, memory := range want {
					if !bytes.Equal(guestMemory(t, s, id), memory) {
						t.Fatalf("%s has another memory", id)
					}
					m, err := s.Get(id)
					if err != nil {
						t.Fatal(err)
					}
					if f := m.Files.Frames; f != nil && len(f.Objects) > checkpoint.MaxObjects {
						t.Fatalf("%d objects", len(f.Objects))
					}
				}
			},
		})
		for _, r := range examined(t, s) {
			if len(r.Damage) > 0 {
				t.Fatalf("%+v", r)
			}
		}
	})
}

// TestCompactSum: many snapshots store what changed, and not what all of them
// hold.
func TestCompactSum(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	g := newGuest(t, s, 160*window, 7)
	const snapshots, changed = 20, 4 * window
	var ids []protocol.CheckpointID
	var hold int64
	for i := range snapshots {
		g.fillAll(g.memory[i*changed:][:changed])
		ids = append(ids, g.snapshot(t))
		m, err := s.Get(ids[i])
		check(t, err)
		hold += m.Files.Pages.Size
		if i == 9 {
			g.rebase(t, ids[i])
		}
	}
	want := guestMemory(t, s, ids[snapshots-1])
	var own int64
	for _, id := range ids {
		compact(t, s, id)
		m, err := s.Get(id)
		check(t, err)
		own += m.Files.Frames.Own
	}
	if !bytes.Equal(want, guestMemory(t, s, ids[snapshots-1])) {
		t.Error("another memory")
	}
	use, err := s.Usage()
	check(t, err)
	// What is filled compresses to half.
	sum := int64(snapshots * changed / 2)
	t.Logf("%d snapshots that hold %d bytes of which %d changed are %d bytes of %d objects; %d of their own", snapshots, hold, snapshots*changed, use.Objects.Bytes, use.Objects.Entries, own)
	if use.Objects.Bytes > sum*12/10 || use.Objects.Entries > checkpoint.MaxObjects {
		t.Errorf("%d bytes of %d objects, for %d that changed", use.Objects.Bytes, use.Objects.Entries, sum)
	}
	// The base on the way is needed no more, and what changed goes with the
	// snapshots.
	c, err := s.Collect(t.Context(), checkpoint.CollectOptions{})
	check(t, err)
	if len(c.Bases) != 1 {
		t.Errorf("%d bases went, want the one that was made on the way", len(c.Bases))
	}
	for _, id := range ids[:snapshots-1] {
		check(t, s.Remove(id))
	}
	c, err = s.Collect(t.Context(), checkpoint.CollectOptions{})
	check(t, err)
	if !bytes.Equal(want, guestMemory(t, s, ids[snapshots-1])) {
		t.Error("another memory")
	}
	check(t, s.Remove(ids[snapshots-1]))
	c, err = s.Collect(t.Context(), checkpoint.CollectOptions{})
	check(t, err)
	if use, err = s.Usage(); err != nil || use != (checkpoint.Usage{}) {
		t.Errorf("left: %+v, %v", use, err)
	}
}

func (g *guest) fillAll(b []byte) {
	for at := 0; at < len(b); at += page {
		g.fill(b[at : at+page])
	}
}

// TestCompactManyBases: however many bases were made on the way, and though some
// of them are gone, what is compacted lies over the first one.
func TestCompactManyBases(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	g := newGuest(t, s, 8*window, 19)
	template := g.m.Base
	want := map[protocol.CheckpointID][]byte{}
	for range 5 {
		g.write(20)
		id := g.snapshot(t)
		want[id] = bytes.Clone(g.memory)
		g.rebase(t, id)
		compact(t, s, id)
		_, err := s.Collect(t.Context(), checkpoint.CollectOptions{KeepBase: func(m checkpoint.BaseManifest) bool { return m.ID == g.m.Base }})
		check(t, err)
	}
	for id, memory := range want {
		m, err := s.Get(id)
		check(t, err)
		if m.Base != template || !bytes.Equal(memory, guestMemory(t, s, id)) {
			t.Errorf("over %s, want %s", m.Base, template)
		}
	}
	_, err := s.Collect(t.Context(), checkpoint.CollectOptions{})
	check(t, err)
	if bases, _, err := s.Bases(); err != nil || len(bases) != 1 || bases[0].ID != template {
		t.Errorf("left: %+v, %v", bases, err)
	}
}

// TestPackAgain: frames that nobody needs go, though others of their file are
// needed.
func TestPackAgain(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	g := newGuest(t, s, 40*window, 3)
	g.fillAll(g.memory[:20*window])
	first := g.snapshot(t)
	g.fillAll(g.memory[:18*window])
	second := g.snapshot(t)
	compact(t, s, first)
	compact(t, s, second)
	want := guestMemory(t, s, second)
	before, err := s.Usage()
	check(t, err)
	check(t, s.Remove(first))
	c, err := s.Collect(t.Context(), checkpoint.CollectOptions{KeepBase: func(checkpoint.BaseManifest) bool { return true }})
	check(t, err)
	after, err := s.Usage()
	check(t, err)
	if c.Packed != 1 || after.Objects.Bytes > before.Objects.Bytes*6/10 {
		t.Errorf("collected %+v; %d bytes of objects, %d before", c, after.Objects.Bytes, before.Objects.Bytes)
	}
	if !bytes.Equal(want, guestMemory(t, s, second)) {
		t.Error("another memory")
	}
	check(t, s.Verify(t.Context(), second))
	if c, err := s.Collect(t.Context(), checkpoint.CollectOptions{KeepBase: func(checkpoint.BaseManifest) bool { return true }}); err != nil || c.Packed != 0 || c.Objects != 0 {
		t.Errorf("once more: %+v, %v", c, err)
	}
}

// TestCompactWhileRead: who has opened a checkpoint, and who is about to, reads
// it right while it is compacted, packed again and removed.
func TestCompactWhileRead(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	g := newGuest(t, s, 12*window, 5)
	want := map[protocol.CheckpointID][]byte{}
	var ids []protocol.CheckpointID
	for range 24 {
		g.write(40)
		id := g.snapshot(t)
		ids, want[id] = append(ids, id), bytes.Clone(g.memory)
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := ids[i%len(ids)]
				got, err := readMemory(s, id)
				if protocol.CodeOf(err) == protocol.CodeUnknownCheckpoint {
					continue // removed
				}
				if err != nil || !bytes.Equal(got, want[id]) {
					t.Errorf("%s: another memory, %v", id, err)
					return
				}
				list, bad, err := s.List()
				if err != nil || len(bad) > 0 || len(list) == 0 {
					t.Errorf("%d listed, %v, %v", len(list), bad, err)
				}
			}
		})
	}
	for i, id := range ids {
		compact(t, s, id)
		if i%3 == 2 && i < len(ids)-1 {
			check(t, s.Remove(ids[i-1]))
			_, err := s.Collect(t.Context(), checkpoint.CollectOptions{KeepBase: func(checkpoint.BaseManifest) bool { return true }})
			check(t, err)
		}
	}
	close(stop)
	readers.Wait()
}

func TestCompactRefuses(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	g := newGuest(t, s, 4*window, 9)
	g.write(10)
	id := g.snapshot(t)
	code(t, s.Compact(t.Context(), id), protocol.CodeInvalidArgument)
	code(t, s.Compact(t.Context(), protocol.NewCheckpointID()), protocol.CodeUnknownCheckpoint)
	check(t, s.MakeDurable(t.Context(), id))
	// Damage is found before anything is replaced.
	for _, name := range []string{"pages", "ram"} {
		files, err := s.Files(id)
		check(t, err)
		base, err := s.BaseFiles(g.m.Base)
		check(t, err)
		path := map[string]string{"pages": files.Pages, "ram": base.RAM}[name]
		data, err := os.ReadFile(path)
		check(t, err)
		bad := bytes.Clone(data)
		bad[len(bad)/2] ^= 1
		overwrite(t, path, bad)
		if e := code(t, s.Compact(t.Context(), id), protocol.CodeCheckpointLost); e.Details["file"] != name {
			t.Errorf("%s: %v", name, e)
		}
		overwrite(t, path, data)
	}
	check(t, s.Compact(t.Context(), id))
	check(t, s.Compact(t.Context(), id))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other := g.snapshot(t)
	check(t, s.MakeDurable(t.Context(), other))
	if err := s.Compact(ctx, other); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	tidy(t, s)
	check(t, s.Verify(t.Context(), other))
	// What is told of it is as before.
	m, err := s.Get(id)
	check(t, err)
	if m.Format != checkpoint.FormatFrames || m.Bytes() != 12+m.Files.Frames.Own || m.Class != checkpoint.ClassNamed {
		t.Errorf("%+v", m)
	}
	check(t, s.SetClass(id, checkpoint.ClassAuto))
	check(t, s.Pin(t.Context(), id))
	check(t, s.Verify(t.Context(), id))
}

// TestCompactBesideDamage: damaged frames of one checkpoint hinder no other, and
// are not taken over.
func TestCompactBesideDamage(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	s := open(t, dir, checkpoint.Options{})
	g := newGuest(t, s, 8*window, 23)
	g.write(60)
	first := g.snapshot(t)
	g.write(5)
	second := g.snapshot(t)
	want := bytes.Clone(g.memory)
	compact(t, s, first)
	objects, err := filepath.Glob(filepath.Join(dir, "objects", "*"))
	check(t, err)
	data, err := os.ReadFile(objects[0])
	check(t, err)
	data[100] ^= 1
	overwrite(t, objects[0], data)
	compact(t, s, second)
	if !bytes.Equal(want, guestMemory(t, s, second)) {
		t.Error("another memory")
	}
	code(t, s.Verify(t.Context(), first), protocol.CodeCheckpointLost)
	check(t, os.Remove(objects[0]))
	third := g.snapshot(t)
	compact(t, s, third)
	if !bytes.Equal(want, guestMemory(t, s, third)) {
		t.Error("another memory")
	}
}

// TestExamineFrames: a flipped bit of any frame is found, and names its file.
func TestExamineFrames(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	s := open(t, dir, checkpoint.Options{})
	g := newGuest(t, s, 8*window, 11)
	var ids []protocol.CheckpointID
	for range 3 {
		g.write(60)
		ids = append(ids, g.snapshot(t))
		compact(t, s, ids[len(ids)-1])
	}
	objects, err := filepath.Glob(filepath.Join(dir, "objects", "*"))
	check(t, err)
	manifests, err := filepath.Glob(filepath.Join(dir, "checkpoints", "*", "manifest"))
	check(t, err)
	files := append(objects, manifests...)
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.SampledFrom(files).Draw(t, "file")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, len(data)-1).Draw(t, "byte")
		bad := bytes.Clone(data)
		bad[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		replace := func(b []byte) {
			if err := errors.Join(os.Remove(path), os.WriteFile(path, b, 0o400)); err != nil {
				t.Fatal(err)
			}
		}
		replace(bad)
		all := examined(t, s)
		replace(data)
		found := false
		for _, r := range all {
			for _, d := range r.Damage {
				found = true
				name := filepath.Base(path)
				if d.File != name && d.File != "objects/"+name || d.Offset > int64(at) {
					t.Fatalf("byte %d of %s: %+v", at, path, d)
				}
			}
		}
		if !found || len(all) != len(ids) {
			t.Fatalf("byte %d of %s: %+v", at, path, all)
		}
	})
	if got := examined(t, s); slices.ContainsFunc(got, func(r checkpoint.Report) bool { return r.Damage != nil }) {
		t.Errorf("after: %+v", got)
	}
	// A file that is gone is named too, and hides nobody.
	check(t, os.Remove(objects[0]))
	lost := 0
	for _, r := range examined(t, s) {
		for _, d := range r.Damage {
			lost++
			if d.File != "objects/"+filepath.Base(objects[0]) {
				t.Errorf("%+v", d)
			}
		}
	}
	if lost == 0 {
		t.Error("a missing file of frames is not told")
	}
}

// TestExportCompacted: the file is that of the same checkpoint before.
func TestExportCompacted(t *testing.T) {
	t.Parallel()
	s, to := open(t, memoryDir(t), checkpoint.Options{}), open(t, memoryDir(t), checkpoint.Options{})
	g := newGuest(t, s, 8*window, 13)
	g.write(50)
	first := g.snapshot(t)
	g.rebase(t, first)
	g.write(50)
	id := g.snapshot(t)
	flat := export(t, s, id)
	want := guestMemory(t, s, id)
	compact(t, s, first)
	compact(t, s, id)
	_, err := s.Collect(t.Context(), checkpoint.CollectOptions{})
	check(t, err)
	framed := export(t, s, id)
	for i, file := range [][]byte{framed, flat, framed} {
		if _, fresh, err := to.ImportFile(t.Context(), bytes.NewReader(file)); err != nil || fresh != (i == 0) {
			t.Fatalf("file %d: fresh %t, %v", i, fresh, err)
		}
	}
	if !bytes.Equal(want, guestMemory(t, to, id)) {
		t.Error("another memory")
	}
	if _, fresh, err := s.ImportFile(t.Context(), bytes.NewReader(flat)); err != nil || fresh {
		t.Errorf("where it came from: fresh %t, %v", fresh, err)
	}
	check(t, checkpoint.Same(t.Context(), s, to, id))
}

// TestTreesOfFrames: frames that one tree needs are its own.
func TestTreesOfFrames(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	g := newGuest(t, s, 8*window, 17)
	g.write(50)
	before := g.snapshot(t)
	compact(t, s, before)
	use, err := s.Trees()
	check(t, err)
	all, err := s.Usage()
	check(t, err)
	if len(use.Trees) != 1 || use.Trees[0].Own != all.Checkpoints.Bytes+all.Objects.Bytes || use.Unused != 0 {
		t.Errorf("%+v of %+v", use, all)
	}
	check(t, s.Remove(before))
	if use, err = s.Trees(); err != nil || use.Unused < all.Objects.Bytes {
		t.Errorf("after its removal: %+v, %v", use, err)
	}
}

// BenchmarkCompactedRead reads pages out of frames, as a load does.
func BenchmarkCompactedRead(b *testing.B) {
	s := open(b, memoryDir(b), checkpoint.Options{})
	g := newGuest(b, s, 256*window, 1)
	g.fillAll(g.memory)
	id := g.snapshot(b)
	for _, stored := range []string{"flat", "frames"} {
		if stored == "frames" {
			compact(b, s, id)
		}
		b.Run(stored, func(b *testing.B) {
			b.SetBytes(256 * window)
			for b.Loop() {
				_, pages, err := s.OpenPages(id)
				check(b, err)
				n, err := copyAll(pages)
				if err := errors.Join(err, pages.Close()); err != nil || n != 256*window {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func copyAll(p *checkpoint.OpenedPages) (n int64, err error) {
	buf := make([]byte, 1<<20)
	r := p.Reader()
	for {
		k, err := r.Read(buf)
		n += int64(k)
		if err != nil {
			if err.Error() == "EOF" {
				err = nil
			}
			return n, err
		}
	}
}
