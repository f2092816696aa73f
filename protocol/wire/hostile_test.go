package wire_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

func TestPrecheck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		body string
		ok   bool
	}{
		{"nil", "\xc0", true},
		{"fixed and signed integers", "\x94\x7f\xe0\xd3\xff\xff\xff\xff\xff\xff\xff\xff\xd0\x80", true},
		{"unsigned", "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", true},
		{"floats", "\x92\xca\x00\x00\x00\x00\xcb\x00\x00\x00\x00\x00\x00\x00\x00", true},
		{"strings", "\x93\xa1a\xd9\x01b\xda\x00\x01c", true},
		{"binary", "\x92\xc4\x01a\xc6\x00\x00\x00\x01b", true},
		{"map", "\x81\xa1a\x80", true},
		{"map16", "\xde\x00\x01\xa1a\xc0", true},
		{"depth at the limit", strings.Repeat("\x91", protocol.MaxDepth) + "\xc0", true},
		{"depth over the limit", strings.Repeat("\x91", protocol.MaxDepth+1) + "\xc0", false},
		{"maps over the limit", strings.Repeat("\x81\xa0", protocol.MaxDepth+1) + "\xc0", false},
		{"nothing", "", false},
		{"trailing byte", "\xc0\xc0", false},
		{"array longer than the rest", "\x92\xc0", false},
		{"array32 of 4 G", "\xdd\xff\xff\xff\xff\xc0", false},
		{"map32 of 4 G", "\xdf\xff\xff\xff\xff\xa0\xc0", false},
		{"map of half the rest", "\x82\xa0\xc0\xa0", false},
		{"string of 4 G", "\xdb\xff\xff\xff\xff", false},
		{"binary of 4 G", "\xc6\xff\xff\xff\xff", false},
		{"header cut", "\xdd\x00", false},
		{"integer cut", "\xcf\x00", false},
		{"integer key", "\x81\x01\x02", false},
		{"nil key", "\x81\xc0\x02", false},
		{"extension", "\xd4\x01\x00", false},
		{"timestamp", "\xd6\xff\x00\x00\x00\x00", false},
		{"unused code", "\xc1", false},
	} {
		err := wire.Precheck([]byte(tc.body))
		if ok := err == nil; ok != tc.ok {
			t.Errorf("%s: got %v, want ok %v", tc.name, err, tc.ok)
		}
		if err != nil && protocol.CodeOf(err) != protocol.CodeProtocol {
			t.Errorf("%s: got code %s, want %s", tc.name, protocol.CodeOf(err), protocol.CodeProtocol)
		}
	}
}

// Whatever the encoder makes passes, and none of its proper prefixes does.
func TestPrecheckAcceptsEncoder(t *testing.T) {
	t.Parallel()
	leaf := rapid.OneOf(rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int64().AsAny(),
		rapid.Uint64().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny())
	tree := leaf
	for range 3 {
		tree = rapid.OneOf(leaf, rapid.SliceOfN(tree, 0, 20).AsAny(), rapid.MapOfN(rapid.String(), tree, 0, 20).AsAny())
	}
	rapid.Check(t, func(t *rapid.T) {
		b, err := wire.Marshal(tree.Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.Precheck(b); err != nil {
			t.Fatalf("%x: %v", b, err)
		}
		if cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut"); wire.Precheck(b[:cut]) == nil {
			t.Fatalf("%x cut at %d passes", b, cut)
		}
	})
}

func TestAnyHoldsPlainTypes(t *testing.T) {
	t.Parallel()
	b, err := wire.Marshal(&protocol.Error{Code: "x", Details: map[string]any{
		"small": uint8(3), "negative": int16(-300), "large": uint64(1 << 63), "float": float32(0.5),
		"map": map[string]any{"n": uint32(70000)}, "list": []any{int8(-1), []byte("b"), "s"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var e protocol.Error
	if err := wire.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"small": int64(3), "negative": int64(-300), "large": uint64(1 << 63), "float": 0.5,
		"map": map[string]any{"n": int64(70000)}, "list": []any{int64(-1), []byte("b"), "s"},
	}
	if diff := cmp.Diff(want, e.Details); diff != "" {
		t.Error(diff)
	}
	var v any
	if err := wire.Unmarshal([]byte("\x81\xa1a\x81\xa1b\x01"), &v); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(any(map[string]any{"a": map[string]any{"b": int64(1)}}), v); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	b, err := wire.Marshal(map[string]any{"n": 5, "later": []any{map[string]any{"x": 1}}})
	if err != nil {
		t.Fatal(err)
	}
	var p protocol.Ping
	if err := wire.Unmarshal(b, &p); err != nil || p.N != 5 {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestDecodeMessageRefuses(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"not an array":   "\x81\xa1a\xc0",
		"one element":    "\x91\xa4ping",
		"three elements": "\x93\xa4ping\x80\xc0",
		"type no string": "\x92\x01\x80",
		"unknown type":   "\x92\xa4pony\x80",
		"body nil":       "\x92\xa4ping\xc0",
		"body an array":  "\x92\xa4ping\x91\x01",
		"wrong type":     "\x92\xa4ping\x81\xa1n\xa1x",
	} {
		m, err := wire.DecodeMessage([]byte(body))
		if protocol.CodeOf(err) != protocol.CodeProtocol {
			t.Errorf("%s: got %v, %v, want %s", name, m, err, protocol.CodeProtocol)
		}
	}
}

// amplifiers become more than a hundred times their size when decoded naively.
func amplifiers() map[string]func(n int) (body []byte, into any) {
	list := func(field string, n int, elem string) []byte {
		b := append([]byte{0x81, 0xa0 | byte(len(field))}, field...)
		b = append(b, 0xdd)
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		return append(b, bytes.Repeat([]byte(elem), n)...)
	}
	return map[string]func(n int) ([]byte, any){
		"nil structs":   func(n int) ([]byte, any) { return list("results", n, "\xc0"), new(protocol.ResultsResult) },
		"empty structs": func(n int) ([]byte, any) { return list("entries", n, "\x80"), new(protocol.FileFrame) },
		"empty maps":    func(n int) ([]byte, any) { return list("env", n, "\x80"), new(protocol.BranchArgs) },
		"tiny maps":     func(n int) ([]byte, any) { return list("env", n, "\x81\xa0\xa0"), new(protocol.BranchArgs) },
		"strings":       func(n int) ([]byte, any) { return list("prompts", n, "\xa0"), new(protocol.LLMArgs) },
		"tiny any maps": func(n int) ([]byte, any) { return list("x", n, "\x81\xa0\xc0"), new(map[string]any) },
		"pointers":      func(n int) ([]byte, any) { return list("results", n, "\x81\xa5error\x80"), new(protocol.ResultsResult) },
		"unknown field": func(n int) ([]byte, any) { return list("zzz", n, "\x81\xa0\xc0"), new(protocol.ResultsResult) },
	}
}

func TestMemoryIsBounded(t *testing.T) {
	for name, make := range amplifiers() {
		body, into := make(1 << 20)
		// Some are refused, some are cheap enough to be decoded.
		got := allocated(func() { wire.Unmarshal(body, into) })
		if limit := allowed(len(body)); got > limit {
			t.Errorf("%s: %d bytes took %d, want at most %d", name, len(body), got, limit)
		}
		// What people really send is not near the bound.
		body, into = make(200)
		if err := wire.Unmarshal(body, into); err != nil {
			t.Errorf("%s: 200 elements: %v", name, err)
		}
	}
}

// allowed is the "small multiple of the input" that the package promises:
// twice its budget, since the decoder has its own buffers, and some noise.
func allowed(n int) uint64 { return 2 * uint64(8*n+1<<20) }

// allocated is what f allocates, garbage included. Not for parallel tests.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A peer that announces much and sends little costs little.
func TestReadFrameGrowsWithInput(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, protocol.MaxMessage)
	for _, n := range []int{0, 100, 100 << 10} {
		input := append(head[:4:4], make([]byte, n)...)
		var err error
		got := allocated(func() { _, err = wire.ReadBody(bytes.NewReader(input), protocol.MaxMessage) })
		if limit := uint64(4*n + 64<<10); got > limit {
			t.Errorf("%d bytes of a large frame took %d, want at most %d", n, got, limit)
		}
		if err == nil || err == io.EOF {
			t.Errorf("%d bytes of a large frame: got %v, want an error", n, err)
		}
	}
}

// targets are the types that a peer's bytes are decoded into.
func targets() []func() any {
	return []func() any{
		func() any { return new(any) },
		func() any { return new(map[string]any) },
		func() any { return new(protocol.Error) },
		func() any { return new(protocol.Open) },
		func() any { return new(protocol.Piece) },
		func() any { return new(protocol.ExecFrame) },
		func() any { return new(protocol.FileFrame) },
		func() any { return new(protocol.LocalRequest) },
		func() any { return new(protocol.LocalReply) },
		func() any { return new(protocol.BranchArgs) },
		func() any { return new(protocol.ResultsResult) },
		func() any { return new(protocol.LLMResult) },
		func() any { return new(protocol.TreeResult) },
		func() any { return new(protocol.WhoamiResult) },
		func() any { return new(protocol.BudgetResult) },
	}
}

func FuzzPrecheck(f *testing.F) {
	for _, make := range amplifiers() {
		body, _ := make(3)
		f.Add(byte(0), body)
	}
	f.Add(byte(1), []byte("\xdf\xff\xff\xff\xff"))
	f.Add(byte(2), bytes.Repeat([]byte{0x91}, 100))
	f.Fuzz(func(t *testing.T, target byte, b []byte) {
		all := targets()
		into := all[int(target)%len(all)]()
		passed := wire.Precheck(b) == nil
		var err error
		if got := allocated(func() { err = wire.Unmarshal(b, into) }); got > allowed(len(b)) {
			t.Errorf("%d bytes took %d", len(b), got)
		}
		if err == nil && !passed {
			t.Error("decoded what the check refuses")
		}
		// A decoder that reads the same bytes agrees on where the value ends.
		if d := msgpack.NewDecoder(bytes.NewReader(b)); passed {
			if err := d.Skip(); err != nil {
				t.Errorf("the check passes what the decoder refuses: %v", err)
			}
			if _, err := d.PeekCode(); err != io.EOF {
				t.Error("the check saw another end than the decoder")
			}
		}
	})
}

func FuzzDecodeMessage(f *testing.F) {
	for _, make := range protocol.Types() {
		b, err := wire.EncodeMessage(make())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m protocol.Message
		var err error
		if got := allocated(func() { m, err = wire.DecodeMessage(b) }); got > allowed(len(b)) {
			t.Errorf("%d bytes took %d", len(b), got)
		}
		if err != nil {
			if protocol.CodeOf(err) != protocol.CodeProtocol {
				t.Errorf("got %v, want code %s", err, protocol.CodeProtocol)
			}
			return
		}
		again, err := wire.EncodeMessage(m)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		if n, err := wire.DecodeMessage(again); err != nil || !cmp.Equal(m, n, cmp.Comparer(sameFloat)) {
			t.Errorf("got %+v, %v, want %+v", n, err, m)
		}
	})
}

// sameFloat makes NaN equal to itself.
func sameFloat(a, b float64) bool { return a == b || a != a && b != b }

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0xc0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xc0})
	f.Add([]byte{0, 0x0f, 0, 0, 0x81})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for r.Len() > 0 {
			before := r.Len()
			var v any
			var err error
			got := allocated(func() { err = wire.ReadFrame(r, &v, protocol.MaxControlFrame) })
			if got > allowed(len(b)) {
				t.Errorf("%d bytes took %d", len(b), got)
			}
			if err != nil {
				return
			}
			if r.Len() >= before-4 {
				t.Fatal("read a frame without a body")
			}
		}
	})
}
