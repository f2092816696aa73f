package files_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/guest/files"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// end is one end of an in-memory stream; frames are encoded as on the wire.
type end struct {
	in, out chan []byte
	closed  chan struct{}
	once    *sync.Once
}

func newStream() (guest, host *end) {
	a, b := make(chan []byte), make(chan []byte)
	closed, once := make(chan struct{}), new(sync.Once)
	return &end{a, b, closed, once}, &end{b, a, closed, once}
}

func (e *end) Send(v any) error {
	b, err := msgpack.Marshal(v)
	if err != nil {
		return err
	}
	select {
	case e.out <- b:
		return nil
	case <-e.closed:
		return io.ErrClosedPipe
	}
}

func (e *end) Receive(v any) error {
	select {
	case b := <-e.in:
		return msgpack.Unmarshal(b, v)
	case <-e.closed:
		return io.EOF
	}
}

func (e *end) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

// open begins an operation.
func open(t testing.TB, s *files.Server, req protocol.FileRequest) *end {
	t.Helper()
	guest, host := newStream()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(context.Background(), req, guest)
	}()
	t.Cleanup(func() {
		host.Close()
		<-served
	})
	return host
}

// answer is all that the guest sent.
type answer struct {
	data    []byte
	entries []protocol.FileEntry
	err     *protocol.Error
}

func read(t testing.TB, host *end) answer {
	t.Helper()
	var a answer
	for {
		var f protocol.FileFrame
		if err := host.Receive(&f); err != nil {
			t.Fatalf("stream ended without a last frame: %v", err)
		}
		a.data = append(a.data, f.Data...)
		a.entries = append(a.entries, f.Entries...)
		if f.Done || f.Error != nil {
			a.err = f.Error
			return a
		}
	}
}

// do runs an operation with data as its content.
func do(t testing.TB, s *files.Server, req protocol.FileRequest, data ...[]byte) answer {
	t.Helper()
	host := open(t, s, req)
	if req.Op == "put" || req.Op == "tar-in" {
		go func() {
			for _, d := range data {
				if host.Send(protocol.FileFrame{Data: d}) != nil {
					return
				}
			}
			host.Send(protocol.FileFrame{End: true})
		}()
	}
	return read(t, host)
}

func must(t testing.TB, a answer) answer {
	t.Helper()
	if a.err != nil {
		t.Fatalf("%s: %v", a.err.Code, a.err)
	}
	return a
}

func wantCode(t testing.TB, what string, a answer, want protocol.Code) {
	t.Helper()
	var got protocol.Code
	if a.err != nil {
		got = a.err.Code
		if strings.Contains(a.err.Message, "/proc/self") {
			t.Errorf("%s: the message names an inner path: %s", what, a.err.Message)
		}
	}
	if got != want {
		t.Errorf("%s: got %q (%v), want %q", what, got, a.err, want)
	}
}

func newServer(t testing.TB) (*files.Server, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("files belong to root in a guest; run the tests as root")
	}
	root := t.TempDir()
	return files.New(files.Config{Root: root}), root
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t testing.TB, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestPutAndGet(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	data := bytes.Repeat([]byte("0123456789abcde\n"), 40_000)
	must(t, do(t, s, protocol.FileRequest{Op: "put", Path: "/f", Mode: 0o4751, UID: 12, GID: 34}, data[:1], nil, data[1:200_000], data[200_000:]))
	st := new(syscall.Stat_t)
	if err := syscall.Stat(root+"/f", st); err != nil {
		t.Fatal(err)
	}
	if st.Mode != syscall.S_IFREG|0o4751 || st.Uid != 12 || st.Gid != 34 {
		t.Errorf("mode %o, owner %d:%d", st.Mode, st.Uid, st.Gid)
	}
	if got := must(t, do(t, s, protocol.FileRequest{Op: "get", Path: "/f"})); !bytes.Equal(got.data, data) {
		t.Errorf("get: %d bytes differ from the %d put", len(got.data), len(data))
	}
	must(t, do(t, s, protocol.FileRequest{Op: "put", Path: "/f"}))
	if got := must(t, do(t, s, protocol.FileRequest{Op: "get", Path: "/f"})); len(got.data) != 0 {
		t.Errorf("get of an empty file: %d bytes", len(got.data))
	}
	if diff := cmp.Diff([]string{"f"}, names(t, root)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// A put that ends early, by the host or by a full disk, changes nothing.
func TestPutIsAtomic(t *testing.T) {
	s, root := newServer(t)
	write(t, root+"/f", "old")
	for label, want := range map[string]protocol.Code{"files.put.write": protocol.CodeDiskFull, "files.put.rename": protocol.CodeDiskFull} {
		clear := fault.Set(label, 1, fault.Error(syscall.ENOSPC))
		wantCode(t, label, do(t, s, protocol.FileRequest{Op: "put", Path: "/f"}, []byte("new")), want)
		clear()
	}
	host := open(t, s, protocol.FileRequest{Op: "put", Path: "/f"})
	host.Send(protocol.FileFrame{Data: []byte("half")})
	eventually(t, "the temporary file is there", func() bool { return len(names(t, root)) == 2 })
	host.Close()
	eventually(t, "the temporary file is gone", func() bool { return len(names(t, root)) == 1 })
	host = open(t, s, protocol.FileRequest{Op: "put", Path: "/f"})
	host.Send(protocol.FileFrame{Error: protocol.Errorf(protocol.CodeInternal, "local file vanished")})
	wantCode(t, "given up", read(t, host), protocol.CodeCancelled)
	if got, _ := os.ReadFile(root + "/f"); string(got) != "old" {
		t.Errorf("content: got %q, want the old one", got)
	}
	if diff := cmp.Diff([]string{"f"}, names(t, root)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// An archive that a full disk cuts leaves whole files only.
func TestTarLeavesNoHalfFile(t *testing.T) {
	s, root := newServer(t)
	defer fault.Set("files.tar.write", 2, fault.Error(syscall.ENOSPC))()
	wantCode(t, "tar-in", do(t, s, protocol.FileRequest{Op: "tar-in", Path: "/"},
		archive(t, entry{name: "whole", data: "x"}, entry{name: "half", data: "y"})), protocol.CodeDiskFull)
	if diff := cmp.Diff([]string{"whole"}, names(t, root)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestFullDisk(t *testing.T) {
	s, root := newServer(t)
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no tmpfs can be mounted here (%v); run the tests as root", err)
	}
	t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
	big := make([]byte, 2<<20)
	wantCode(t, "put", do(t, s, protocol.FileRequest{Op: "put", Path: "/big"}, big), protocol.CodeDiskFull)
	wantCode(t, "tar-in", do(t, s, protocol.FileRequest{Op: "tar-in", Path: "/"},
		archive(t, entry{name: "small", data: "x"}, entry{name: "big", data: string(big)})), protocol.CodeDiskFull)
	if diff := cmp.Diff([]string{"small"}, names(t, root)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	must(t, do(t, s, protocol.FileRequest{Op: "put", Path: "/fits"}, big[:900<<10]))
}

func TestListAndStat(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	for i := range 700 {
		write(t, fmt.Sprintf("%s/d/%03d", root, i), "x")
	}
	link(t, "/nowhere", root+"/d/link")
	got := must(t, do(t, s, protocol.FileRequest{Op: "list", Path: "/d"})).entries
	if len(got) != 701 {
		t.Fatalf("%d entries, want 701", len(got))
	}
	i := slices.IndexFunc(got, func(e protocol.FileEntry) bool { return e.Name == "link" })
	if i < 0 || got[i].Target != "/nowhere" || got[i].Mode&syscall.S_IFMT != syscall.S_IFLNK {
		t.Errorf("link: %+v", got[max(i, 0)])
	}
	when := time.Unix(1234, 567)
	if err := os.Chtimes(root+"/d/000", when, when); err != nil {
		t.Fatal(err)
	}
	one := must(t, do(t, s, protocol.FileRequest{Op: "stat", Path: "/d/000"})).entries
	want := []protocol.FileEntry{{Name: "000", Mode: syscall.S_IFREG | 0o644, Size: 1, MTime: when.UnixNano()}}
	if diff := cmp.Diff(want, one); diff != "" {
		t.Errorf("stat (-want +got):\n%s", diff)
	}
	if e := must(t, do(t, s, protocol.FileRequest{Op: "stat", Path: "/"})).entries; len(e) != 1 || e[0].Name != "/" {
		t.Errorf("stat of /: %+v", e)
	}
}

func TestMkdirAndRemove(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	link(t, "/real", root+"/alias")
	link(t, "/none", root+"/dangling")
	for _, tt := range []struct {
		req  protocol.FileRequest
		want protocol.Code
	}{
		{protocol.FileRequest{Op: "mkdir", Path: "/real", Mode: 0o2750, UID: 5, GID: 6}, ""},
		{protocol.FileRequest{Op: "mkdir", Path: "/real"}, protocol.CodeInvalidArgument},
		{protocol.FileRequest{Op: "mkdir", Path: "/no/such"}, protocol.CodeNotFound},
		{protocol.FileRequest{Op: "mkdir", Path: "/alias/a/b/c", Whole: true}, ""},
		{protocol.FileRequest{Op: "mkdir", Path: "/alias/a/b/c", Whole: true}, ""},
		{protocol.FileRequest{Op: "mkdir", Path: "/dangling/a", Whole: true}, protocol.CodeNotFound},
		{protocol.FileRequest{Op: "mkdir", Path: "/", Whole: true}, ""},
		{protocol.FileRequest{Op: "mkdir", Path: "/"}, protocol.CodeInvalidArgument},
		{protocol.FileRequest{Op: "put", Path: "/real/a/f"}, ""},
		{protocol.FileRequest{Op: "put", Path: "/real/a"}, protocol.CodeInvalidArgument},
		{protocol.FileRequest{Op: "mkdir", Path: "/real/a/f", Whole: true}, protocol.CodeInvalidArgument},
		{protocol.FileRequest{Op: "remove", Path: "/real"}, protocol.CodeInvalidArgument},
		{protocol.FileRequest{Op: "remove", Path: "/none"}, protocol.CodeNotFound},
		{protocol.FileRequest{Op: "remove", Path: "/none/x", Whole: true}, ""},
		{protocol.FileRequest{Op: "remove", Path: "/", Whole: true}, protocol.CodeInvalidArgument},
		{protocol.FileRequest{Op: "remove", Path: "/alias", Whole: true}, ""}, // the link alone
		{protocol.FileRequest{Op: "stat", Path: "/real/a/b/c"}, ""},
		{protocol.FileRequest{Op: "remove", Path: "/real", Whole: true}, ""},
		{protocol.FileRequest{Op: "stat", Path: "/real"}, protocol.CodeNotFound},
		{protocol.FileRequest{Op: "remove", Path: "/dangling"}, ""},
	} {
		wantCode(t, fmt.Sprintf("%s %s", tt.req.Op, tt.req.Path), do(t, s, tt.req), tt.want)
	}
	if left := names(t, root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRemoveWide(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	for i := range 600 {
		write(t, fmt.Sprintf("%s/d/%d/f", root, i), "")
	}
	must(t, do(t, s, protocol.FileRequest{Op: "remove", Path: "/d", Whole: true}))
	if left := names(t, root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	write(t, root+"/f", "x")
	if err := unix.Mkfifo(root+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{"put", "get", "list", "stat", "remove", "mkdir", "tar-in", "tar-out"} {
		for _, p := range []string{"", "f", "../f", "./f", "/f\x00g"} {
			wantCode(t, op+" "+p, do(t, s, protocol.FileRequest{Op: op, Path: p}), protocol.CodeInvalidArgument)
		}
		if op != "mkdir" {
			wantCode(t, op, do(t, s, protocol.FileRequest{Op: op, Path: "/no/such"}), protocol.CodeNotFound)
		}
	}
	wantCode(t, "unknown", do(t, s, protocol.FileRequest{Op: "chmod", Path: "/f"}), protocol.CodeInvalidArgument)
	wantCode(t, "get of a pipe", do(t, s, protocol.FileRequest{Op: "get", Path: "/pipe"}), protocol.CodeInvalidArgument)
	wantCode(t, "get of a directory", do(t, s, protocol.FileRequest{Op: "get", Path: "/"}), protocol.CodeInvalidArgument)
	wantCode(t, "list of a file", do(t, s, protocol.FileRequest{Op: "list", Path: "/f"}), protocol.CodeInvalidArgument)
}

// Absolute links count from the root given, and nothing leads out of it.
func TestConfined(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	outside := t.TempDir()
	write(t, outside+"/secret", "secret")
	write(t, root+"/dir/f", "inside")
	link(t, "/dir", root+"/abs")
	link(t, "/dir/f", root+"/absfile")
	link(t, outside, root+"/out")
	link(t, "../../../../../../../../.."+outside, root+"/up")
	link(t, "/proc/self/root", root+"/magic")
	for path, want := range map[string]string{
		"/abs/f": "inside", "/absfile": "inside", "/../../dir/f": "inside", "/abs/../dir/f": "inside",
		"/out/secret": "", "/up/secret": "", "/magic" + outside + "/secret": "", "/.." + outside + "/secret": "",
	} {
		a := do(t, s, protocol.FileRequest{Op: "get", Path: path})
		if want == "" {
			wantCode(t, path, a, protocol.CodeNotFound)
		} else if string(a.data) != want {
			t.Errorf("get %s: got %q (%v), want %q", path, a.data, a.err, want)
		}
	}
	wantCode(t, "put", do(t, s, protocol.FileRequest{Op: "put", Path: "/out/new"}), protocol.CodeNotFound)
	wantCode(t, "remove", do(t, s, protocol.FileRequest{Op: "remove", Path: "/up/secret", Whole: true}), "")
	if diff := cmp.Diff([]string{"secret"}, names(t, outside)); diff != "" {
		t.Errorf("outside (-want +got):\n%s", diff)
	}
}

func TestQuiesce(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	host := open(t, s, protocol.FileRequest{Op: "put", Path: "/f"})
	host.Send(protocol.FileFrame{Data: []byte("one ")})
	eventually(t, "first piece written", func() bool { return size(root) == 4 })
	if err := s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "new operation", do(t, s, protocol.FileRequest{Op: "stat", Path: "/"}), protocol.CodeBusy)
	host.Send(protocol.FileFrame{Data: []byte("two")}) // taken, not written
	time.Sleep(20 * time.Millisecond)
	if n := size(root); n != 4 {
		t.Errorf("%d bytes written while quiesced, want 4", n)
	}
	s.Resume()
	host.Send(protocol.FileFrame{End: true})
	must(t, read(t, host))
	if got, err := os.ReadFile(root + "/f"); string(got) != "one two" {
		t.Errorf("content: got %q, %v", got, err)
	}
}

// In a copy of the machine the link is gone when the files may be touched.
func TestQuiesceThenLinkLost(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	host := open(t, s, protocol.FileRequest{Op: "put", Path: "/f"})
	host.Send(protocol.FileFrame{Data: []byte("one ")})
	eventually(t, "first piece written", func() bool { return size(root) == 4 })
	if err := s.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	host.Close()
	time.Sleep(20 * time.Millisecond)
	if n := len(names(t, root)); n != 1 {
		t.Errorf("%d files while quiesced, want the temporary one", n)
	}
	s.Resume()
	eventually(t, "cleaned up", func() bool { return len(names(t, root)) == 0 })
}

func TestOperationsAreBounded(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	var hosts []*end
	for range 32 {
		hosts = append(hosts, open(t, s, protocol.FileRequest{Op: "put", Path: "/f"}))
	}
	eventually(t, "all begun", func() bool { return len(names(t, root)) == 32 })
	wantCode(t, "one more", do(t, s, protocol.FileRequest{Op: "stat", Path: "/"}), protocol.CodeBusy)
	for _, h := range hosts {
		h.Close()
	}
	eventually(t, "one fits again", func() bool { return do(t, s, protocol.FileRequest{Op: "stat", Path: "/"}).err == nil })
}

func TestCancelledContextEndsServe(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	guest, _ := newStream()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(ctx, protocol.FileRequest{Op: "put", Path: "/f"}, guest)
	}()
	eventually(t, "begun", func() bool { return len(names(t, root)) == 1 })
	cancel()
	<-served
	if left := names(t, root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// size is that of the only file in a directory.
func size(dir string) int64 {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		return -1
	}
	info, err := entries[0].Info()
	if errors.Is(err, os.ErrNotExist) || err != nil {
		return -1
	}
	return info.Size()
}

// eventually polls what has no event to wait for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so after a minute: %s", what)
		}
		time.Sleep(pause)
	}
}
