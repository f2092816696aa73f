package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

const mib = 1 << 20

func whole(b *memory.Base) string { return fmt.Sprintf("0:%d", b.Size()) }

func capture(t testing.TB, p *process, b *memory.Base) *memory.Delta {
	t.Helper()
	d, err := memory.CreateDelta(t.Context(), p.pid, b, filepath.Join(t.TempDir(), "delta"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestScanWaysAgree(t *testing.T) {
	t.Parallel()
	b := newBase(t, 16*mib)
	// Two mappings, the later part of the base below, as a VMM with a hole
	// below 4 GiB may have it.
	p := start(t, "private", memfd(t, b), "0:12582912", "12582912:4194304")
	p.do(t, "read 0 4096 0") // reading makes nothing dirty
	p.do(t, "fill %d 1 7", 0)
	p.do(t, "fill %d 3 7", 5*page)
	p.do(t, "zero %d 2", 100*page)
	p.do(t, "fill %d 4 7", 12*mib-2*page) // over the edge
	p.do(t, "fill %d 1 7", 16*mib-page)
	regions, err := memory.Regions(p.pid, b)
	if err != nil {
		t.Fatal(err)
	}
	byRead, err := memory.ScanPagemap(p.pid, regions)
	if err != nil {
		t.Fatal(err)
	}
	type piece struct{ Offset, Length int64 }
	var got []piece
	for _, r := range byRead {
		got = append(got, piece{r.Offset / page, r.Length / page})
	}
	want := []piece{{0, 1}, {5, 3}, {100, 2}, {3070, 2}, {3072, 2}, {4095, 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	byIoctl, err := memory.ScanIoctl(p.pid, regions)
	if errors.Is(err, unix.ENOTTY) {
		t.Skip("kernel without PAGEMAP_SCAN")
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(byRead, byIoctl); diff != "" {
		t.Errorf("pagemap and PAGEMAP_SCAN differ:\n%s", diff)
	}
}

// More ranges than fit one call of the kernel or one batch of a capture, with
// zero pages between.
func TestManyScatteredPages(t *testing.T) {
	t.Parallel()
	b := newBase(t, 64*mib)
	f := memfd(t, b)
	p := start(t, "private", f, whole(b))
	for i := 0; i < 64*mib/page; i += 2 {
		p.do(t, "%s %d 1 3", []string{"fill", "fill", "zero"}[i%3], i*page)
	}
	p.do(t, "fill %d 3 4", 4001*page)
	p.do(t, "zero %d 700 4", 5000*page)
	regions, err := memory.Regions(p.pid, b)
	if err != nil {
		t.Fatal(err)
	}
	byRead, err := memory.ScanPagemap(p.pid, regions)
	if err != nil {
		t.Fatal(err)
	}
	byIoctl, err := memory.ScanIoctl(p.pid, regions)
	if err != nil && !errors.Is(err, unix.ENOTTY) {
		t.Fatal(err)
	}
	if err == nil && !slices.Equal(byRead, byIoctl) {
		t.Error("pagemap and PAGEMAP_SCAN differ")
	}
	d := capture(t, p, b)
	c := start(t, "private", f, whole(b))
	if err := d.Apply(t.Context(), c.pid, b); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p.memory(t, b), c.memory(t, b)) {
		t.Error("the copy differs")
	}
}

// Each generation starts from the capture of the one before and writes more;
// what a child sees must be what its parent saw.
func TestGenerations(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"apply", "flatten", "memfd"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := newBase(t, 8*mib)
			parent := start(t, "private", memfd(t, b), whole(b))
			for gen := range 5 {
				parent.do(t, "fill %d %d %d", 300*page+gen*17*page, 40, gen+2)
				parent.do(t, "fill %d 1 %d", 1500*page+gen*page*3, gen+2)
				parent.do(t, "zero %d 30", gen*50*page) // zero over data
				parent.do(t, "zero %d 30", 1200*page)   // zero over a hole
				want := parent.memory(t, b)
				d := capture(t, parent, b)
				if err := d.Verify(t.Context(), b.Size()); err != nil {
					t.Fatal(err)
				}
				var child *process
				switch way {
				case "apply":
					child = start(t, "private", memfd(t, b), whole(b))
					if err := d.Apply(t.Context(), child.pid, b); err != nil {
						t.Fatal(err)
					}
				case "flatten":
					nb, err := memory.Flatten(t.Context(), b, d, protocol.NewBaseID(), filepath.Join(t.TempDir(), "b"))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { nb.Close() })
					b = nb
					child = start(t, "private", memfd(t, b), whole(b))
				case "memfd":
					nb, err := memory.FlattenMemfd(t.Context(), b, d, protocol.NewBaseID())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { nb.Close() })
					b = nb
					child = start(t, "private", memfd(t, b), whole(b))
				}
				if !bytes.Equal(want, child.memory(t, b)) {
					t.Fatalf("generation %d differs from its parent", gen+1)
				}
				parent = child
			}
		})
	}
}

func TestCaptureLeavesOutZerosInHoles(t *testing.T) {
	t.Parallel()
	b := newBase(t, 4*mib)
	p := start(t, "private", memfd(t, b), whole(b))
	p.do(t, "zero %d 10", 3*mib)
	p.do(t, "zero %d 10", 1*mib)
	d := capture(t, p, b)
	want := []memory.Run{{Offset: mib, Length: 10 * page, Zero: true}}
	if diff := cmp.Diff(want, d.Runs); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestPropertyCaptureApply(t *testing.T) {
	t.Parallel()
	b := newBase(t, 3*mib)
	f := memfd(t, b)
	rapid.Check(t, func(r *rapid.T) {
		p := start(t, "private", f, "0:1048576", "1048576:2097152")
		for i := range rapid.IntRange(0, 12).Draw(r, "writes") {
			off := rapid.IntRange(0, 3*mib/page-1).Draw(r, "page")
			n := rapid.IntRange(1, 3*mib/page-off).Draw(r, "pages")
			p.do(t, "%s %d %d %d", rapid.SampledFrom([]string{"fill", "zero", "read"}).Draw(r, "what"), off*page, min(n, 300), i)
		}
		d := capture(t, p, b)
		for _, run := range d.Runs {
			if !run.Zero && run.Length > memory.MaxRun {
				r.Fatalf("run of %d bytes", run.Length)
			}
		}
		c := start(t, "private", f, whole(b))
		if err := d.Apply(t.Context(), c.pid, b); err != nil {
			r.Fatal(err)
		}
		if !bytes.Equal(p.memory(t, b), c.memory(t, b)) {
			r.Fatal("the copy differs")
		}
	})
}

func TestSharedPartialAndDoubleMappingsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBase(t, 4*mib)
	plain, err := os.OpenFile(filepath.Join(t.TempDir(), "ram"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	plain.Truncate(4 * mib)
	written, err := memory.OpenBase(protocol.NewBaseID(), plain.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()
	for _, tt := range []struct {
		name, mode string
		file       *os.File
		base       *memory.Base
		layout     []string
		want       error
	}{
		{"shared", "shared", plain, written, []string{whole(b)}, memory.ErrShared},
		{"other file", "private", plain, b, []string{whole(b)}, memory.ErrNotMapped},
		{"hole", "private", memfd(t, b), b, []string{"0:1048576", "2097152:2097152"}, memory.ErrNotMapped},
		{"tail missing", "private", memfd(t, b), b, []string{"0:1048576"}, memory.ErrNotMapped},
		{"twice", "private", memfd(t, b), b, []string{whole(b), "1048576:4096"}, memory.ErrAmbiguous},
	} {
		p := start(t, tt.mode, tt.file, tt.layout...)
		if _, err := memory.Capture(t.Context(), p.pid, tt.base, io.Discard); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if err := (&memory.Delta{Path: "/dev/null"}).Apply(t.Context(), p.pid, tt.base); !errors.Is(err, tt.want) {
			t.Errorf("%s: apply: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestDamage(t *testing.T) {
	t.Parallel()
	b := newBase(t, 4*mib)
	p := start(t, "private", memfd(t, b), whole(b))
	p.do(t, "fill 0 5 9")
	p.do(t, "fill %d 2 9", 20*page)
	good := capture(t, p, b)
	body, err := os.ReadFile(good.Path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := func(change func([]byte) []byte, runs []memory.Run) *memory.Delta {
		path := filepath.Join(t.TempDir(), "d")
		if err := os.WriteFile(path, change(slices.Clone(body)), 0o600); err != nil {
			t.Fatal(err)
		}
		return &memory.Delta{Path: path, Runs: runs}
	}
	same := func(p []byte) []byte { return p }
	for name, d := range map[string]*memory.Delta{
		"missing":       {Path: good.Path + "x", Runs: good.Runs},
		"flipped bit":   damaged(func(p []byte) []byte { p[6*page+77] ^= 4; return p }, good.Runs),
		"cut":           damaged(func(p []byte) []byte { return p[:len(p)-1] }, good.Runs),
		"longer":        damaged(func(p []byte) []byte { return append(p, 0) }, good.Runs),
		"swapped runs":  damaged(same, []memory.Run{good.Runs[1], good.Runs[0]}),
		"beyond base":   damaged(same, []memory.Run{good.Runs[0], {Offset: 4 * mib, Length: 2 * page}}),
		"unaligned":     damaged(same, []memory.Run{good.Runs[0], {Offset: 1, Length: 2 * page}}),
		"huge run":      damaged(same, []memory.Run{good.Runs[0], {Offset: mib, Length: 1 << 62}}),
		"negative run":  damaged(same, []memory.Run{good.Runs[0], {Offset: mib, Length: -page, Zero: true}}),
		"negative zero": damaged(same, []memory.Run{{Offset: -page, Length: page, Zero: true}}),
	} {
		c := start(t, "private", memfd(t, b), whole(b))
		if err := d.Apply(t.Context(), c.pid, b); protocol.CodeOf(err) != protocol.CodeCheckpointLost {
			t.Errorf("%s: apply: %v", name, err)
		}
		dst := filepath.Join(t.TempDir(), "flat")
		if _, err := memory.Flatten(t.Context(), b, d, "", dst); protocol.CodeOf(err) != protocol.CodeCheckpointLost {
			t.Errorf("%s: flatten: %v", name, err)
		}
		if _, err := os.Stat(dst); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: flatten left its file: %v", name, err)
		}
	}
	if err := good.Verify(t.Context(), b.Size()); err != nil {
		t.Error(err)
	}
}

func TestRunTable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		runs := rapid.SliceOf(rapid.Custom(func(r *rapid.T) memory.Run {
			return memory.Run{
				Offset: rapid.Int64().Draw(r, "offset"), Length: rapid.Int64().Draw(r, "length"),
				Zero: rapid.Bool().Draw(r, "zero"), CRC: rapid.Uint32().Draw(r, "crc"),
			}
		})).Draw(r, "runs")
		enc := memory.EncodeRuns(runs)
		got, err := memory.DecodeRuns(enc)
		if err != nil {
			r.Fatal(err)
		}
		if !slices.Equal(runs, got) {
			r.Fatal(cmp.Diff(runs, got))
		}
		i := rapid.IntRange(0, len(enc)-1).Draw(r, "byte")
		enc[i] ^= 1 << rapid.IntRange(0, 7).Draw(r, "bit")
		if _, err := memory.DecodeRuns(enc); protocol.CodeOf(err) != protocol.CodeCheckpointLost {
			r.Fatalf("bit flipped in byte %d: %v", i, err)
		}
		if _, err := memory.DecodeRuns(enc[:i]); protocol.CodeOf(err) != protocol.CodeCheckpointLost {
			r.Fatalf("cut to %d bytes: %v", i, err)
		}
	})
}

func FuzzDecodeRuns(f *testing.F) {
	f.Add(memory.EncodeRuns([]memory.Run{{Offset: page, Length: page, CRC: 7}}))
	f.Fuzz(func(t *testing.T, p []byte) {
		if runs, err := memory.DecodeRuns(p); err == nil && !bytes.Equal(memory.EncodeRuns(runs), p) {
			t.Error("accepted a table that is not its own encoding")
		}
	})
}

func TestMemfdIsSealedAndShared(t *testing.T) {
	t.Parallel()
	b := newBase(t, 4*mib)
	f := memfd(t, b)
	if g := memfd(t, b); g != f {
		t.Error("a second copy was made")
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.WriteAt([]byte{1}, 0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("write: %v", err)
	}
	if err := again.Truncate(0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("truncate: %v", err)
	}
	if _, err := unix.Mmap(int(again.Fd()), 0, page, unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, syscall.EPERM) {
		t.Errorf("shared mapping: %v", err)
	}
	if _, err := unix.FcntlInt(again.Fd(), unix.F_ADD_SEALS, 0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("more seals: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 > b.DataBytes()+mib {
		t.Errorf("copy takes %d bytes for %d of data (%v)", st.Blocks*512, b.DataBytes(), err)
	}
}

func TestBaseFilesOfTheWrongShape(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, size := range map[string]int{"empty": 0, "odd": page + 1} {
		os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600)
		if _, err := memory.OpenBase("", filepath.Join(dir, name)); protocol.CodeOf(err) != protocol.CodeCheckpointLost {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := memory.OpenBase("", dir); err == nil {
		t.Error("a directory was opened as a base")
	}
}

func TestClosedBase(t *testing.T) {
	t.Parallel()
	b := newBase(t, 4*mib)
	memfd(t, b)
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	if _, err := b.Memfd(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if _, err := b.File(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// Not parallel: faults are for the whole process.
func TestFullDisk(t *testing.T) {
	b := newBase(t, 8*mib)
	p := start(t, "private", memfd(t, b), whole(b))
	p.do(t, "fill 0 1500 3")
	good := capture(t, p, b)
	for _, label := range []string{"memory.capture.write", "memory.flatten.write", "memory.copy.write"} {
		clear := fault.Set(label, 2, fault.Error(syscall.ENOSPC))
		path := filepath.Join(t.TempDir(), "new")
		var err error
		if label == "memory.capture.write" {
			_, err = memory.CreateDelta(t.Context(), p.pid, b, path)
		} else {
			_, err = memory.Flatten(t.Context(), b, good, "", path)
		}
		clear()
		if protocol.CodeOf(err) != protocol.CodeDiskFull || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", label, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: file left: %v", label, err)
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := newBase(t, 8*mib)
	p := start(t, "private", memfd(t, b), whole(b))
	p.do(t, "fill 0 2000 3")
	why := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	w := writerFunc(func(p []byte) (int, error) { cancel(why); return len(p), nil })
	if _, err := memory.Capture(ctx, p.pid, b, w); !errors.Is(err, why) {
		t.Errorf("capture: %v", err)
	}
	if err := capture(t, p, b).Apply(ctx, p.pid, b); !errors.Is(err, why) {
		t.Errorf("apply: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestProcessIdentity(t *testing.T) {
	t.Parallel()
	b := newBase(t, 4*mib)
	p := start(t, "private", memfd(t, b), whole(b))
	at, err := memory.StartTime(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	if !memory.Alive(p.pid, at) || memory.Alive(p.pid, at+1) {
		t.Error("alive by another start time than its own")
	}
	d := capture(t, p, b)
	syscall.Kill(p.pid, syscall.SIGKILL)
	for p.out.Scan() { // until its end of the pipe is gone
	}
	// Now it is a zombie, or about to be one.
	for memory.Alive(p.pid, at) {
	}
	if _, err := memory.Capture(t.Context(), p.pid, b, io.Discard); err == nil {
		t.Error("captured a dead process")
	}
	if err := d.Apply(t.Context(), p.pid, b); err == nil {
		t.Error("applied to a dead process")
	}
	if _, err := memory.StartTime(1 << 30); !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cost memory.Cost
		want memory.Start
	}{
		{memory.Cost{DeltaBytes: 0, Children: 100}, memory.ApplyEach},
		{memory.Cost{DeltaBytes: 64 << 10, Children: 1000}, memory.ApplyEach},
		{memory.Cost{DeltaBytes: 1 << 30, Children: 1}, memory.ApplyEach},
		{memory.Cost{DeltaBytes: 1 << 30, Children: 2}, memory.NewBase},
		{memory.Cost{DeltaBytes: 8 << 20, CopyBytes: 100 << 20, Children: 4}, memory.ApplyEach},
		{memory.Cost{DeltaBytes: 8 << 20, CopyBytes: 100 << 20, Children: 64}, memory.NewBase},
		{memory.Cost{DeltaBytes: 8 << 20, Children: 4}, memory.NewBase},
		{memory.Cost{DeltaBytes: 200 << 20, CopyBytes: 100 << 20, Children: 4}, memory.NewBase},
	} {
		if got := tt.cost.Choose(); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.cost, got, tt.want)
		}
	}
}

func BenchmarkCapture(b *testing.B) {
	for _, bench := range []struct {
		name   string
		stride int // every stride-th page is written
	}{{"contiguous", 1}, {"scattered", 2}} {
		b.Run(bench.name, func(b *testing.B) {
			base := newBase(b, 128*mib)
			p := start(b, "private", memfd(b, base), whole(base))
			for off := 0; off < 128*mib/page; off += bench.stride {
				if bench.stride == 1 {
					p.do(b, "fill 0 %d 3", 128*mib/page)
					break
				}
				p.do(b, "fill %d 1 3", off*page)
			}
			f, err := os.Create(filepath.Join(b.TempDir(), "delta"))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			b.SetBytes(int64(128 * mib / bench.stride))
			for b.Loop() {
				f.Seek(0, io.SeekStart)
				if _, err := memory.Capture(b.Context(), p.pid, base, f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	base := newBase(b, 128*mib)
	f := memfd(b, base)
	p := start(b, "private", f, whole(base))
	p.do(b, "fill 0 %d 3", 128*mib/page)
	d := capture(b, p, base)
	b.SetBytes(d.Bytes())
	for b.Loop() {
		b.StopTimer()
		c := start(b, "private", f, whole(base))
		b.StartTimer()
		if err := d.Apply(b.Context(), c.pid, base); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		syscall.Kill(c.pid, syscall.SIGKILL)
		b.StartTimer()
	}
}

func BenchmarkFlattenMemfd(b *testing.B) {
	base := newBase(b, 128*mib)
	f := memfd(b, base)
	p := start(b, "private", f, whole(base))
	p.do(b, "fill 0 %d 3", 64*mib/page)
	d := capture(b, p, base)
	b.SetBytes(d.Bytes() + base.DataBytes())
	for b.Loop() {
		nb, err := memory.FlattenMemfd(b.Context(), base, d, "")
		if err != nil {
			b.Fatal(err)
		}
		nb.Close()
	}
}

// A machine of an earlier process maps that one's copy of the base. It is
// captured by the recorded name, while the content that is compared with is the
// base's own file.
func TestForeignCopy(t *testing.T) {
	t.Parallel()
	old := newBase(t, 4*mib)
	p := start(t, "private", memfd(t, old), whole(old))
	name, err := memory.NameIn(p.pid, old)
	if err != nil {
		t.Fatal(err)
	}
	old.Close()
	b, err := memory.OpenBase(old.ID(), old.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	own := memfd(t, b)
	p.do(t, "fill %d 5 7", 3*page)
	p.do(t, "zero %d 3", 100*page)
	p.do(t, "zero %d 3", 900*page) // over a hole: says nothing new
	if _, err := memory.Regions(p.pid, b); !errors.Is(err, memory.ErrNotMapped) {
		t.Errorf("by the names of this process: %v", err)
	}
	if _, err := memory.NameIn(p.pid, b); !errors.Is(err, memory.ErrNotMapped) {
		t.Errorf("name by the names of this process: %v", err)
	}
	forget, again := b.Know(name), b.Know(name)
	again()
	d := capture(t, p, b)
	var zeros int64
	for _, r := range d.Runs {
		if r.Zero {
			zeros += r.Length
		}
	}
	if d.Bytes() != 5*page || zeros != 3*page {
		t.Errorf("captured %d bytes and %d of zeros", d.Bytes(), zeros)
	}
	c := start(t, "private", own, whole(b))
	if err := d.Apply(t.Context(), c.pid, b); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p.memory(t, b), c.memory(t, b)) {
		t.Error("the copy differs")
	}
	forget()
	forget()
	if _, err := memory.Regions(p.pid, b); !errors.Is(err, memory.ErrNotMapped) {
		t.Errorf("after it is forgotten: %v", err)
	}
}
