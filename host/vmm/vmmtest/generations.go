package vmmtest

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

func digestBase(t testing.TB, b *memory.Base) uint32 {
	t.Helper()
	f, err := b.File()
	if err != nil {
		t.Fatal(err)
	}
	h := crc32.NewIEEE()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, b.Size())); err != nil {
		t.Fatal(err)
	}
	return h.Sum32()
}

// Five generations, each a child of the one before, each writing and zeroing.
func (s *suite) testGenerations(t *testing.T) {
	want := newModel(regionPages, 1)
	var delta *memory.Delta
	state := s.template.state
	for gen := range 5 {
		m := s.load(t, s.template, delta, state)
		m.resume(t)
		if got := m.say(t, "count"); got != strconv.Itoa(gen+2) {
			t.Errorf("generation %d counts %s, not %d", gen+1, got, gen+2)
		}
		want.checkGuest(t, m)
		want.fill(t, m, uint64(gen+2), gen*997, 4000, gen+1)
		want.zero(t, m, gen*500+300, 200)
		want.fill(t, m, uint64(gen+102), regionPages-50*(gen+1), 20, 1)
		delta, state = m.capture(t, s.template.base)
		want.checkImage(t, s.template.base, delta)
		m.close(t)
	}
	m := s.load(t, s.template, delta, state)
	m.resume(t)
	want.checkGuest(t, m)
}

// A machine that was captured goes on, with what its child does not see, and
// can be captured again.
func (s *suite) testParentRunsOn(t *testing.T) {
	parent := s.load(t, s.template, nil, s.template.state)
	parent.resume(t)
	want := newModel(regionPages, 1)
	for round := range 3 {
		want.fill(t, parent, uint64(round+7), 1000*round, 500, 1)
		delta, state := parent.capture(t, s.template.base)
		parent.resume(t)
		child := s.load(t, s.template, delta, state)
		child.resume(t)
		atCapture := slices.Clone(want)
		want.fill(t, parent, uint64(round+70), 1000*round+100, 200, 1)
		atCapture.checkGuest(t, child)
		want.checkGuest(t, parent)
		if got := parent.say(t, "count"); got != strconv.Itoa(round+2) {
			t.Errorf("parent counts %s in round %d", got, round)
		}
		child.close(t)
	}
}

// Pages that were data in the base and are zero now.
func (s *suite) testZeroOverData(t *testing.T) {
	m := s.load(t, s.template, nil, s.template.state)
	m.resume(t)
	want := newModel(regionPages, 1)
	want.zero(t, m, 0, regionPages)
	delta, state := m.capture(t, s.template.base)
	m.close(t)
	var zeros int64
	for _, r := range delta.Runs {
		if r.Zero {
			zeros += r.Length
		}
	}
	if zeros < regionPages*pageSize {
		t.Errorf("%d bytes in zero runs, of %d", zeros, regionPages*pageSize)
	}
	want.checkImage(t, s.template.base, delta)
	child := s.load(t, s.template, delta, state)
	child.resume(t)
	want.checkGuest(t, child)
}

// Several children of one checkpoint at once see the same and do not see each
// other.
func (s *suite) testChildrenAreApart(t *testing.T) {
	parent := s.load(t, s.template, nil, s.template.state)
	parent.resume(t)
	want := newModel(regionPages, 1)
	want.fill(t, parent, 5, 0, regionPages, 9)
	delta, state := parent.capture(t, s.template.base)
	parent.close(t)
	children := make([]*machine, 4)
	models := make([]model, len(children))
	var started sync.WaitGroup
	for i := range children {
		started.Go(func() { children[i] = s.load(t, s.template, delta, state) })
	}
	started.Wait()
	for i, c := range children {
		if c == nil {
			t.Fatal("not all children started")
		}
		c.resume(t)
		models[i] = slices.Clone(want)
		models[i].fill(t, c, uint64(100+i), i*10, 5000, 2)
	}
	for i, c := range children {
		models[i].checkGuest(t, c)
	}
}

// A base made of base and delta serves like one made by a template, from a
// file and from memory.
func (s *suite) testFlattenedBase(t *testing.T) {
	m := s.load(t, s.template, nil, s.template.state)
	m.resume(t)
	want := newModel(regionPages, 1)
	want.fill(t, m, 3, 10, 3000, 3)
	want.zero(t, m, 5000, 100)
	delta, state := m.capture(t, s.template.base)
	m.close(t)
	file, err := memory.Flatten(t.Context(), s.template.base, delta, protocol.NewBaseID(), filepath.Join(t.TempDir(), "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mem, err := memory.FlattenMemfd(t.Context(), s.template.base, delta, protocol.NewBaseID())
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for _, base := range []*memory.Base{file, mem} {
		tpl := &template{spec: s.template.spec, base: base}
		child := s.load(t, tpl, nil, state)
		child.resume(t)
		want.checkGuest(t, child)
		again := slices.Clone(want)
		again.fill(t, child, 4, 0, 100, 1)
		d, st := child.capture(t, base)
		child.close(t)
		again.checkImage(t, base, d)
		grandchild := s.load(t, tpl, d, st)
		grandchild.resume(t)
		again.checkGuest(t, grandchild)
		grandchild.close(t)
	}
}

// 4 GiB, of which a part lies above the hole below 4 GiB.
func (s *suite) testLargeMemory(t *testing.T) {
	const pages = 256
	tpl := s.makeTemplate(t, 4<<30, func(m *machine) {
		m.say(t, "map %d", pages)
		m.say(t, "fill 1 0 %d 1", pages)
	})
	m := s.load(t, tpl, nil, tpl.state)
	m.resume(t)
	want := newModel(pages, 1)
	want.fill(t, m, 2, 0, pages, 2)
	want.zero(t, m, 100, 10)
	address, err := strconv.ParseInt(m.say(t, "where 0"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	delta, state := m.capture(t, tpl.base)
	m.close(t)
	want.checkImage(t, tpl.base, delta)
	checkPlace(t, tpl.base, delta, offsetOf(t, m, address), 2, 0)
	if address < 1<<32 {
		t.Errorf("page 0 lies at %#x: nothing above 4 GiB was tried", address)
	}
	child := s.load(t, tpl, delta, state)
	child.resume(t)
	want.checkGuest(t, child)
}

// offsetOf translates a guest-physical address by the driver's table.
func offsetOf(t testing.TB, m *machine, address int64) int64 {
	t.Helper()
	total := int64(0)
	off := int64(-1)
	for _, r := range m.RAM() {
		total += r.Length
		if address >= r.GuestAddress && address < r.GuestAddress+r.Length {
			off = r.Offset + address - r.GuestAddress
		}
	}
	if total != m.spec.MemoryBytes || off < 0 {
		t.Fatalf("RAM table %v of %d bytes: %#x is at %d", m.RAM(), m.spec.MemoryBytes, address, off)
	}
	return off
}

func checkPlace(t testing.TB, base *memory.Base, delta *memory.Delta, off int64, seed, index uint64) {
	t.Helper()
	seen := false
	eachPage(t, base, delta, func(at int64, page []byte) {
		if at == off {
			seen = bytes.HasPrefix(page, pageMagic) &&
				binary.LittleEndian.Uint64(page[8:]) == seed && binary.LittleEndian.Uint64(page[16:]) == index
		}
	})
	if !seen {
		t.Errorf("page %d of seed %d is not at offset %#x", index, seed, off)
	}
}
