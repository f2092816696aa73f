package vmmtest

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/ratoon-project/ratoon/host/memory"
)

const (
	pageSize    = 4096
	regionPages = 64 * mib / pageSize
)

// model is what the guest's region must hold: the seed of each page, 0 for a
// page of zeros.
type model []uint64

func newModel(pages int, seed uint64) model {
	return slices.Repeat(model{seed}, pages)
}

// fill has the guest write every step-th of n pages from first on.
func (mo model) fill(t testing.TB, m *machine, seed uint64, first, n, step int) {
	t.Helper()
	m.say(t, "fill %d %d %d %d", seed, first, n, step)
	for i := first; i < first+n; i += step {
		mo[i] = seed
	}
}

func (mo model) zero(t testing.TB, m *machine, first, n int) {
	t.Helper()
	m.say(t, "zero %d %d", first, n)
	clear(mo[first : first+n])
}

// checkGuest asks the guest for a hash of its region, of a few words a page.
func (mo model) checkGuest(t testing.TB, m *machine) {
	t.Helper()
	var h uint64
	page := make([]byte, pageSize)
	for i, seed := range mo {
		clear(page)
		if seed != 0 {
			fillPage(page, seed, uint64(i))
		}
		for _, at := range []int{0, 8, 16, i % (pageSize / 8) * 8} {
			h = (h ^ binary.LittleEndian.Uint64(page[at:])) * 0x9fb21c651e98df25
			h ^= h >> 29
		}
	}
	if got := m.say(t, "hash"); got != strconv.FormatUint(h, 16) {
		t.Errorf("guest sees a region with hash %s, not %x", got, h)
	}
}

// checkImage looks for the region's pages in base and delta: each must be
// there once, whole and with its seed.
func (mo model) checkImage(t testing.TB, base *memory.Base, delta *memory.Delta) {
	t.Helper()
	found := make([]int, len(mo))
	want := make([]byte, pageSize)
	eachPage(t, base, delta, func(off int64, page []byte) {
		if !bytes.HasPrefix(page, pageMagic) {
			return
		}
		seed, index := binary.LittleEndian.Uint64(page[8:]), binary.LittleEndian.Uint64(page[16:])
		if index >= uint64(len(mo)) {
			t.Fatalf("page at %#x says it is page %d", off, index)
		}
		found[index]++
		fillPage(want, seed, index)
		if !bytes.Equal(page, want) {
			t.Errorf("page %d at %#x is torn", index, off)
		}
		if seed != mo[index] {
			t.Errorf("page %d at %#x has seed %d, not %d", index, off, seed, mo[index])
		}
	})
	bad := 0
	for i, n := range found {
		wanted := 1
		if mo[i] == 0 {
			wanted = 0
		}
		if n != wanted {
			bad++
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d pages are missing or there too often", bad, len(mo))
	}
}

// eachPage gives every page of base with delta that is not a hole.
func eachPage(t testing.TB, base *memory.Base, delta *memory.Delta, do func(off int64, page []byte)) {
	t.Helper()
	covered := map[int64]bool{}
	if delta != nil {
		f, err := os.Open(delta.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		buf := make([]byte, pageSize)
		for _, r := range delta.Runs {
			for at := int64(0); at < r.Length; at += pageSize {
				covered[r.Offset+at] = true
				if r.Zero {
					continue
				}
				if _, err := io.ReadFull(f, buf); err != nil {
					t.Fatal(err)
				}
				do(r.Offset+at, buf)
			}
		}
	}
	f, err := base.File()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, mib)
	zeros := make([]byte, mib)
	for off := int64(0); off < base.Size(); off += mib {
		if _, err := f.ReadAt(buf, off); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(buf, zeros) {
			continue
		}
		for at := int64(0); at < mib; at += pageSize {
			if !covered[off+at] {
				do(off+at, buf[at:at+pageSize])
			}
		}
	}
}

var pageMagic = []byte("RATOONPG")

// fillPage is what the guest's fill writes.
func fillPage(p []byte, seed, index uint64) {
	copy(p, pageMagic)
	binary.LittleEndian.PutUint64(p[8:], seed)
	binary.LittleEndian.PutUint64(p[16:], index)
	x := seed<<32 ^ index
	for at := 24; at < pageSize; at += 8 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(p[at:], z^z>>31)
	}
}
