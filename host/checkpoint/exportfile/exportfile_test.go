package exportfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/checkpoint/exportfile"
	"github.com/ratoon-project/ratoon/protocol"
)

// piece is what a test writes and reads again.
type piece struct {
	Part   exportfile.Part
	Offset int64
	Bytes  string
}

func write(t rapid.TB, pieces []piece) []byte {
	t.Helper()
	var file bytes.Buffer
	w := exportfile.NewWriter(&file)
	for _, p := range pieces {
		if err := w.Write(p.Part, p.Offset, []byte(p.Bytes)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// read returns what stands in a file, neighbours joined.
func read(r io.Reader) (out []piece, err error) {
	in := exportfile.NewReader(r)
	for {
		c, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if n := len(out); n > 0 && out[n-1].Part == c.Part && out[n-1].Offset+int64(len(out[n-1].Bytes)) == c.Offset {
			out[n-1].Bytes += string(c.Bytes)
		} else {
			out = append(out, piece{c.Part, c.Offset, string(c.Bytes)})
		}
	}
}

func sample() []piece {
	return []piece{
		{exportfile.Manifest, 0, "manifest"}, {exportfile.Base, 0, "base"}, {exportfile.RAM, 4096, strings.Repeat("r", 5000)},
		{exportfile.RAM, 1 << 30, "tail"}, {exportfile.State, 0, "state"}, {exportfile.Pages, 0, "pages"},
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var want []piece
		for _, part := range []exportfile.Part{exportfile.Manifest, exportfile.Base, exportfile.RAM, exportfile.State, exportfile.Pages} {
			var at int64
			for range rapid.IntRange(0, 3).Draw(t, "pieces") {
				if part == exportfile.RAM {
					at += rapid.Int64Range(1, 1<<40).Draw(t, "gap")
				}
				b := strings.Repeat(rapid.StringN(1, 10, -1).Draw(t, "content"), rapid.IntRange(1, 1<<18).Draw(t, "times"))
				want = append(want, piece{part, at, b})
				at += int64(len(b))
			}
		}
		got, err := read(iotest.HalfReader(bytes.NewReader(write(t, want))))
		if err != nil {
			t.Fatal(err)
		}
		joined := want[:0:0]
		for _, p := range want {
			if n := len(joined); n > 0 && joined[n-1].Part == p.Part && joined[n-1].Offset+int64(len(joined[n-1].Bytes)) == p.Offset {
				joined[n-1].Bytes += p.Bytes
			} else {
				joined = append(joined, p)
			}
		}
		if d := cmp.Diff(joined, got); d != "" {
			t.Fatalf("(-want +got):\n%.2000s", d)
		}
	})
}

// refused tells that a file is refused, typed, at a byte of it.
func refused(t *testing.T, file []byte, what string) {
	t.Helper()
	_, err := read(bytes.NewReader(file))
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e.Code != protocol.CodeInvalidArgument && e.Code != protocol.CodeCheckpointRefused {
		t.Fatalf("%s: %v, want it refused", what, err)
	}
	if at, ok := e.Details["offset"].(int64); !ok || at < 0 || at > int64(len(file)) {
		t.Fatalf("%s: %v: offset %v of a file of %d bytes", what, err, e.Details["offset"], len(file))
	}
}

func TestTruncated(t *testing.T) {
	t.Parallel()
	file := write(t, sample())
	for n := range file {
		refused(t, file[:n], fmt.Sprintf("cut at %d", n))
	}
	refused(t, append(file, 0), "a byte more")
}

func TestFlippedBit(t *testing.T) {
	t.Parallel()
	file := write(t, sample())
	for i := range 8 * len(file) {
		bad := bytes.Clone(file)
		bad[i/8] ^= 1 << (i % 8)
		refused(t, bad, fmt.Sprintf("bit %d of byte %d", i%8, i/8))
	}
}

// TestCrafted holds files with right checksums that no release writes.
func TestCrafted(t *testing.T) {
	t.Parallel()
	x := exportfile.Compress([]byte("x"))
	n := uint32(len(x))
	one := func(part string, offset uint64) []byte { return exportfile.Record(part, offset, 1, n, x) }
	bomb := exportfile.Compress(make([]byte, 64<<20))
	for name, records := range map[string][][]byte{
		"unknown part":      {one("what", 0)},
		"a path for a part": {one("../x", 0)},
		"order":             {one("base", 0), one("mani", 0)},
		"twice":             {one("base", 0), one("stat", 0), one("base", 1)},
		"gap":               {one("stat", 1)},
		"overlap":           {one("ram ", 4096), one("ram ", 0)},
		"far away":          {one("ram ", 1<<63)},
		"nothing":           {exportfile.Record("stat", 0, 0, n, x)},
		"huge content":      {exportfile.Record("stat", 0, 1<<31, n, x)},
		"huge stored":       {exportfile.Record("stat", 0, 1, 1<<31, x)},
		"too short":         {exportfile.Record("stat", 0, 2, n, x)},
		"bomb":              {exportfile.Record("stat", 0, exportfile.MaxContent, uint32(len(bomb)), bomb)},
		"no zstd":           {exportfile.Record("stat", 0, 5, 5, []byte("plain"))},
		"wrong digest":      {one("end ", 0)},
		"no end":            {one("mani", 0), one("base", 0)},
	} {
		refused(t, append([]byte("ratoon checkpoint export 1\n"), bytes.Join(records, nil)...), name)
	}
	for _, first := range []string{"", "\n", "ratoon checkpoint export ", "ratoon checkpoint export 1", "ratoon checkpoint export 01\n", "ratoon checkpoint export -1\n",
		"ratoon checkpoint export x\n", "ratoon checkpoint export 2\n", "ratoon checkpoint export 99999999999999999999999999\n", "{}\n"} {
		refused(t, append([]byte(first), one("mani", 0)...), first)
	}
}

// TestWriterOrder: a writer does not write what a reader refuses.
func TestWriterOrder(t *testing.T) {
	t.Parallel()
	w := exportfile.NewWriter(io.Discard)
	if err := w.Write(exportfile.State, 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if w.Write(exportfile.Base, 0, []byte("x")) == nil || w.Write(exportfile.State, 0, []byte("x")) == nil {
		t.Error("written out of order")
	}
}

func TestErrorsOfStreams(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	file := write(t, sample())
	for _, n := range []int{0, 10, 40, len(file)} {
		if _, err := read(io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v, want the reader's error", n, err)
		}
	}
	w := exportfile.NewWriter(brokenWriter{broken})
	if err := w.Write(exportfile.State, 0, []byte("x")); !errors.Is(err, broken) {
		t.Errorf("got %v, want the writer's error", err)
	}
}

type brokenWriter struct{ err error }

func (b brokenWriter) Write([]byte) (int, error) { return 0, b.err }

// FuzzReader holds that nothing panics, and that content is never more than
// zstd can make of a file.
func FuzzReader(f *testing.F) {
	file := write(f, sample())
	f.Add(file)
	f.Add(file[:len(file)/2])
	f.Fuzz(func(t *testing.T, file []byte) {
		pieces, err := read(bytes.NewReader(file))
		total := 0
		for _, p := range pieces {
			total += len(p.Bytes)
		}
		if total > exportfile.MaxContent*(1+len(file)/28) {
			t.Fatalf("%d bytes of content in %d", total, len(file))
		}
		if err != nil {
			if c := protocol.CodeOf(err); c != protocol.CodeInvalidArgument && c != protocol.CodeCheckpointRefused {
				t.Fatalf("code %s: %v", c, err)
			}
		}
	})
}
