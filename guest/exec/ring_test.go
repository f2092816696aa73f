package exec_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/guest/exec"
)

// A ring against a plain byte slice that holds everything ever written.
func TestRingAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 40_000).Draw(t, "size")
		total := rapid.Int64Range(0, 50_000).Draw(t, "budget")
		r := exec.NewRing(size, total)
		var all []byte
		base := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"fill": func(t *rapid.T) {
				p := make([]byte, rapid.IntRange(0, 20_000).Draw(t, "n"))
				for i := range p {
					p[i] = byte((len(all) + i) * 7 >> 3)
				}
				n := r.Fill(p)
				all = append(all, p[:n]...)
				if held := uint64(len(all)) - base; n < len(p) && held < uint64(min(size, 4096)) {
					t.Fatalf("full at %d bytes of %d", held, size)
				}
			},
			"drop": func(t *rapid.T) {
				base = rapid.Uint64Range(base, uint64(len(all))).Draw(t, "to")
				r.Drop(base)
			},
			"drop old": func(t *rapid.T) { r.Drop(rapid.Uint64Range(0, base).Draw(t, "to")) },
			"fit": func(t *rapid.T) {
				r.Fit()
				if held := len(all) - int(base); r.Capacity() != held {
					t.Fatalf("capacity after fit: got %d, want %d", r.Capacity(), held)
				}
			},
			"": func(t *rapid.T) {
				if gotBase, gotEnd := r.Span(); gotBase != base || gotEnd != uint64(len(all)) {
					t.Fatalf("span: got [%d, %d), want [%d, %d)", gotBase, gotEnd, base, len(all))
				}
				if r.Capacity() > size || r.Used() > total || r.Used() != int64(max(0, r.Capacity()-4096)) {
					t.Fatalf("capacity %d of %d, budget %d of %d", r.Capacity(), size, r.Used(), total)
				}
				off := rapid.Uint64Range(base, uint64(len(all))).Draw(t, "off")
				p := make([]byte, rapid.IntRange(0, 50_000).Draw(t, "read"))
				n := r.Read(off, p)
				want := all[off:min(uint64(len(all)), off+uint64(len(p)))]
				if !bytes.Equal(p[:n], want) {
					t.Fatalf("read %d bytes at %d differ from what was written", n, off)
				}
			},
		})
	})
}
