package memory_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

const page = 4096

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "target" {
		target()
		return
	}
	os.Exit(m.Run())
}

// target plays the VMM: a process that maps fd 3 and does as told on stdin.
// Map arguments are offset:length of the file, mapped in that order.
func target() {
	regions := map[int64][]byte{}
	flags := unix.MAP_PRIVATE
	if os.Args[2] == "shared" {
		flags = unix.MAP_SHARED
	}
	for _, a := range os.Args[3:] {
		var off, length int64
		fmt.Sscanf(a, "%d:%d", &off, &length)
		p, err := unix.Mmap(3, off, int(length), unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		regions[off] = p
	}
	at := func(off int64) []byte {
		for o, p := range regions {
			if off >= o && off < o+int64(len(p)) {
				return p[off-o:]
			}
		}
		panic("no such offset")
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		f := strings.Fields(in.Text())
		off, _ := strconv.ParseInt(f[1], 0, 64)
		n, _ := strconv.Atoi(f[2])
		switch f[0] {
		case "fill": // n pages from off, content by off and seed
			seed, _ := strconv.ParseUint(f[3], 0, 64)
			for i := range int64(n) {
				copy(at(off + i*page)[:page], content(off+i*page, seed))
			}
		case "zero":
			for i := range int64(n) {
				clear(at(off + i*page)[:page])
			}
		case "read":
			sum := 0
			for i := range int64(n) {
				sum += int(at(off + i*page)[0])
			}
		}
		fmt.Println("ok")
	}
}

// content is the page that target's fill writes.
func content(off int64, seed uint64) []byte {
	p := make([]byte, page)
	r := rand.NewChaCha8([32]byte{0: byte(seed), 1: byte(seed >> 8), 8: byte(off >> 12), 9: byte(off >> 20), 10: byte(off >> 28)})
	io.ReadFull(r, p)
	return p
}

type process struct {
	pid int
	in  io.Writer
	out *bufio.Scanner
}

// start runs a target that maps the file; layout as of target.
func start(t testing.TB, mode string, f *os.File, layout ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"target", mode}, layout...)...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() }))
	p := &process{cmd.Process.Pid, in, bufio.NewScanner(out)}
	if !p.out.Scan() || p.out.Text() != "ready" {
		t.Fatalf("target said %q", p.out.Text())
	}
	return p
}

func (p *process) do(t testing.TB, format string, args ...any) {
	t.Helper()
	fmt.Fprintf(p.in, format+"\n", args...)
	if !p.out.Scan() || p.out.Text() != "ok" {
		t.Fatalf("target said %q", p.out.Text())
	}
}

// memory reads all of the base as the process sees it.
func (p *process) memory(t testing.TB, b *memory.Base) []byte {
	t.Helper()
	regions, err := memory.Regions(p.pid, b)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, b.Size())
	for _, r := range regions {
		local := []unix.Iovec{{Base: &out[r.Offset]}}
		local[0].SetLen(int(r.Length))
		n, err := unix.ProcessVMReadv(p.pid, local, []unix.RemoteIovec{{Base: uintptr(r.Addr), Len: int(r.Length)}}, 0)
		if err != nil || int64(n) != r.Length {
			t.Fatalf("read target: %d, %v", n, err)
		}
	}
	return out
}

// newBase makes a sparse base with content in the first half, holes after.
func newBase(t testing.TB, size int64) *memory.Base {
	t.Helper()
	path := filepath.Join(t.TempDir(), "base")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Truncate(size)
	for off := int64(0); off < size/2; off += page {
		f.WriteAt(content(off, 1), off)
	}
	f.Close()
	if err := memory.Protect(path); err != nil {
		t.Fatal(err)
	}
	b, err := memory.OpenBase(protocol.NewBaseID(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func memfd(t testing.TB, b *memory.Base) *os.File {
	t.Helper()
	f, err := b.Memfd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}
