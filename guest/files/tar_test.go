package files_test

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

type entry struct {
	name, target, data string
	kind               byte // 0: regular
	mode               int64
	uid                int
	mtime              time.Time
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Linkname: e.target, Size: int64(len(e.data)), Mode: 0o644, Uid: e.uid, ModTime: e.mtime}
		if e.kind != 0 {
			h.Typeflag = e.kind
		}
		if e.mode != 0 {
			h.Mode = e.mode
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// described is a tree as text by name: mode, owner, time, content.
func described(t testing.TB, root string) map[string]any {
	t.Helper()
	type file struct {
		Mode          uint32
		UID, GID      uint32
		Nlink         uint64
		MTime         int64
		Content, Link string
	}
	out := map[string]any{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		f := file{Mode: st.Mode, UID: st.Uid, GID: st.Gid, MTime: info.ModTime().UnixNano()}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			f.Link, err = os.Readlink(p)
		case info.Mode().IsRegular():
			f.Nlink = uint64(st.Nlink)
			var b []byte
			b, err = os.ReadFile(p)
			f.Content = string(b)
		}
		out[strings.TrimPrefix(p, root+"/")] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tar-out into tar-in gives the same tree.
func TestTarRoundTrip(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	write(t, root+"/src/a", "content of a")
	write(t, root+"/src/empty", "")
	write(t, root+"/src/big", strings.Repeat("0123456789", 30_000))
	write(t, root+"/src/d/e/"+strings.Repeat("long", 50), "deep")
	link(t, "/etc/passwd", root+"/src/abs")
	link(t, "../../a", root+"/src/d/rel")
	link(t, "nowhere", root+"/src/dangling")
	if err := os.Link(root+"/src/a", root+"/src/d/hard"); err != nil {
		t.Fatal(err)
	}
	for p, mode := range map[string]uint32{"a": 0o4711, "d": 0o1777, "d/e": 0o555, "empty": 0} {
		if err := unix.Chmod(root+"/src/"+p, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Lchown(root+"/src/abs", 7, 8); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(root+"/src/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	ts := []unix.Timespec{{Sec: 1000, Nsec: 123456789}, {Sec: 1000, Nsec: 123456789}}
	for _, p := range []string{"a", "abs", "d/e", "d"} {
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, root+"/src/"+p, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
	}
	packed := must(t, do(t, s, protocol.FileRequest{Op: "tar-out", Path: "/src"})).data
	must(t, do(t, s, protocol.FileRequest{Op: "mkdir", Path: "/dst"}))
	for range 2 { // the second time everything exists
		must(t, do(t, s, protocol.FileRequest{Op: "tar-in", Path: "/dst"}, packed[:5], packed[5:70_001], packed[70_001:]))
		want := described(t, root+"/src")
		delete(want, "pipe")
		if diff := cmp.Diff(want, described(t, root+"/dst")); diff != "" {
			t.Fatalf("tree (-want +got):\n%s", diff)
		}
	}
}

func TestTarOutOfOneFile(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	write(t, root+"/d/f", "text")
	link(t, "/d/f", root+"/alias")
	link(t, "/d", root+"/dir")
	for path, want := range map[string]string{"/d/f": "f", "/alias": "alias", "/dir": "f"} {
		r := tar.NewReader(bytes.NewReader(must(t, do(t, s, protocol.FileRequest{Op: "tar-out", Path: path})).data))
		h, err := r.Next()
		if err != nil || h.Name != want {
			t.Errorf("%s: got %+v, %v, want %s", path, h, err, want)
			continue
		}
		if b, err := io.ReadAll(r); string(b) != "text" || err != nil {
			t.Errorf("%s: got %q, %v", path, b, err)
		}
	}
}

func TestTarInRefuses(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, outside+"/victim", "safe")
	big := archive(t, entry{name: "f", data: strings.Repeat("x", 300_000)})
	for name, packed := range map[string][]byte{
		"absolute":          archive(t, entry{name: "/f", data: "x"}),
		"dots":              archive(t, entry{name: "../f", data: "x"}),
		"inner dots":        archive(t, entry{name: "a/../../f", data: "x"}),
		"absolute link":     archive(t, entry{name: "l", target: outside, kind: tar.TypeSymlink}, entry{name: "l/victim", data: "x"}),
		"relative link":     archive(t, entry{name: "l", target: "../..", kind: tar.TypeSymlink}, entry{name: "l/victim", data: "x"}),
		"directory by link": archive(t, entry{name: "l", target: outside, kind: tar.TypeSymlink}, entry{name: "l/d/", kind: tar.TypeDir, mode: 0o777}),
		"link by link":      archive(t, entry{name: "l", target: outside, kind: tar.TypeSymlink}, entry{name: "l/x", target: "y", kind: tar.TypeSymlink}),
		"hard link out":     archive(t, entry{name: "h", target: "../victim", kind: tar.TypeLink}),
		"hard link by link": archive(t, entry{name: "l", target: outside, kind: tar.TypeSymlink}, entry{name: "h", target: "l/victim", kind: tar.TypeLink}),
		"device":            archive(t, entry{name: "null", kind: tar.TypeChar}),
		"pipe":              archive(t, entry{name: "pipe", kind: tar.TypeFifo}),
		"file on directory": archive(t, entry{name: "d/", kind: tar.TypeDir}, entry{name: "d", data: "x"}),
		"garbage":           bytes.Repeat([]byte("garbage!"), 200),
		"truncated":         big[:200_000],
	} {
		s, root := newServer(t)
		if err := os.Mkdir(root+"/dst", 0o755); err != nil {
			t.Fatal(err)
		}
		wantCode(t, name, do(t, s, protocol.FileRequest{Op: "tar-in", Path: "/dst"}, packed), protocol.CodeInvalidArgument)
		if diff := cmp.Diff([]string{"dst"}, names(t, root)); diff != "" {
			t.Errorf("%s: beside the directory (-want +got):\n%s", name, diff)
		}
		if _, err := os.Lstat(root + "/dst/f"); err == nil {
			t.Errorf("%s: there is a file", name)
		}
	}
	if diff := cmp.Diff([]string{"victim"}, names(t, outside)); diff != "" {
		t.Errorf("outside (-want +got):\n%s", diff)
	}
	if b, _ := os.ReadFile(outside + "/victim"); string(b) != "safe" {
		t.Errorf("victim: %q", b)
	}
}

// Links that stay inside are followed, as distributions' trees need it, and
// files are replaced, not written through.
func TestTarInMergesIntoTree(t *testing.T) {
	t.Parallel()
	s, root := newServer(t)
	write(t, root+"/usr/lib/old", "old")
	write(t, root+"/shared", "untouched")
	link(t, "usr/lib", root+"/lib")
	link(t, "shared", root+"/through")
	must(t, do(t, s, protocol.FileRequest{Op: "tar-in", Path: "/"}, archive(t,
		entry{name: "./", kind: tar.TypeDir, mode: 0o700},
		entry{name: "lib/", kind: tar.TypeDir, mode: 0o755},
		entry{name: "lib/new", data: "new"},
		entry{name: "no/parents/here", data: "x"},
		entry{name: "through", data: "own"})))
	for file, want := range map[string]string{"usr/lib/new": "new", "usr/lib/old": "old", "no/parents/here": "x", "through": "own", "shared": "untouched"} {
		if got, err := os.ReadFile(filepath.Join(root, file)); string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", file, got, err, want)
		}
	}
	if target, err := os.Readlink(root + "/lib"); target != "usr/lib" {
		t.Errorf("lib is no longer a link: %q, %v", target, err)
	}
}
