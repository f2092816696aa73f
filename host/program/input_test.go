package program_test

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/protocol"
)

// run follows a program that reads, over one stream for each of the places.
func run(t *testing.T, stdin io.Reader, places ...[]program.Place) (streams []*pipe, done <-chan error) {
	t.Helper()
	l := &oneLine{places: places}
	for range places {
		l.streams = append(l.streams, newPipe())
	}
	p := program.New(program.Options{Spec: &protocol.ExecSpec{Stdin: true}, Stdin: stdin})
	return l.streams, follow(t.Context(), p, l)
}

var (
	first    = []program.Place{{Timeline: "tl-1"}}
	restored = []program.Place{{Timeline: "tl-1"}, {Timeline: "tl-2", Origin: "tl-1", Offsets: &protocol.ExecOffsets{}}}
)

func (p *pipe) expect(t *testing.T, want protocol.ExecInput) {
	t.Helper()
	if diff := cmp.Diff(want, p.input(t)); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
}

// A new link goes on where the guest says it is.
func TestInputOverLinks(t *testing.T) {
	t.Parallel()
	st, done := run(t, strings.NewReader("0123456789"), first, first)
	st[0].put(started(0))
	if got := st[0].input(t); string(got.Data) != "0123456789" || got.Offset != 0 {
		t.Errorf("got %+v", got)
	}
	st[0].put(taken(3))
	st[0].Close() // the next tells of two more
	st[1].put(started(5))
	st[1].expect(t, protocol.ExecInput{Offset: 5, Data: []byte("56789"), End: true})
	st[1].put(exited)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// After a restore the program gets what the timeline before had taken and not
// consumed.
func TestInputAfterRestore(t *testing.T) {
	t.Parallel()
	st, done := run(t, strings.NewReader("0123456789"), first, restored, restored)
	st[0].put(started(0))
	st[0].input(t)
	st[0].put(taken(6))
	st[0].Close()
	st[1].put(started(4))
	st[1].expect(t, protocol.ExecInput{Offset: 4, Data: []byte("456789"), End: true})
	st[1].put(taken(10))
	st[1].Close()
	st[2].put(started(10))
	st[2].expect(t, protocol.ExecInput{Offset: 10, End: true})
	st[2].put(exited)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// As much is kept as a pipe holds; what comes before is left out.
func TestInputKept(t *testing.T) {
	t.Parallel()
	src := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{}).Read(src)
	const reached = 200_000
	for name, from := range map[string]uint64{"all": reached - protocol.MaxExecUnread, "some": reached - 1000, "lost": 7} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, done := run(t, bytes.NewReader(src), first, restored)
			st[0].put(started(0))
			for at := 0; at < reached; {
				at += len(st[0].input(t).Data)
				st[0].put(taken(uint64(min(at, reached))))
			}
			st[0].Close()
			st[1].put(started(from))
			at := max(from, reached-protocol.MaxExecUnread)
			for end := false; !end; {
				in := st[1].input(t)
				if in.Offset != at || !bytes.Equal(in.Data, src[at:at+uint64(len(in.Data))]) {
					t.Fatalf("%d bytes at %d, want those at %d", len(in.Data), in.Offset, at)
				}
				at += uint64(len(in.Data))
				end = in.End
				st[1].put(taken(at))
			}
			st[1].put(exited)
			if err := <-done; err != nil || at != uint64(len(src)) {
				t.Fatalf("ended at %d: %v", at, err)
			}
		})
	}
}

// What was taken before a checkpoint, and was not heard of, is not replayed.
func TestInputTakenUnheard(t *testing.T) {
	t.Parallel()
	st, done := run(t, strings.NewReader("0123456789"), first, restored)
	st[0].put(started(0))
	st[0].input(t)
	st[0].Close()
	st[1].put(started(7))
	st[1].expect(t, protocol.ExecInput{Offset: 7, Data: []byte("789"), End: true})
	st[1].put(exited)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Input is read ahead of the guest by a bounded amount, and Follow's end lets
// go of the source.
func TestInputBounded(t *testing.T) {
	t.Parallel()
	src := &counting{}
	st, done := run(t, src, first)
	st[0].put(started(0))
	n := 0
	for n < 64<<10 {
		n += len(st[0].input(t).Data)
	}
	st[0].put(taken(1))
	st[0].put(exited)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n > 128<<10 {
		t.Errorf("%d bytes were sent of which none was taken", n)
	}
}

// counting never ends.
type counting struct{}

func (counting) Read(b []byte) (int, error) {
	copy(b, bytes.Repeat([]byte("x"), len(b)))
	return len(b), nil
}

// A guest that says it took what was read here and not yet sent to it.
func TestInputTakenUnsent(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	st, done := run(t, r, first)
	st[0].put(started(0))
	const total = 1000
	for range total + 1 { // each byte is kept when the next is read
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second is looked at after the first
		st[0].put(taken(total))
	}
	w.Close()
	for !st[0].input(t).End {
	}
	st[0].put(exited)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A guest that counts what it was never given ends its own program's
// following, nothing else.
func TestInputLies(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string][]protocol.ExecFrame{
		"more":            {started(0), taken(11)},
		"more at once":    {started(0), taken(math.MaxUint64)},
		"wrapped":         {started(math.MaxUint64)},
		"largest":         {started(math.MaxInt64)},
		"started twice":   {started(0), started(0)},
		"restored beyond": nil,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			places := [][]program.Place{first}
			if lie == nil {
				places = append(places, restored)
			}
			st, done := run(t, strings.NewReader("0123456789"), places...)
			for _, f := range lie {
				st[0].put(f)
			}
			if lie == nil {
				st[0].put(started(0))
				st[0].input(t)
				st[0].put(taken(8))
				st[0].Close()
				st[1].put(started(12))
			}
			if err := <-done; protocol.CodeOf(err) != protocol.CodeProtocol {
				t.Errorf("got %v, want %s", err, protocol.CodeProtocol)
			}
		})
	}
}
