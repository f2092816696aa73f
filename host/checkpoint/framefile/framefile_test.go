package framefile_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/checkpoint/framefile"
)

// write makes a file of these frames, of windows 0, 1 and so on.
func write(t rapid.TB, dir string, frames ...[]byte) (path, name string) {
	t.Helper()
	path = filepath.Join(dir, "file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := framefile.NewWriter(f)
	for i, b := range frames {
		if n, err := w.Add(uint64(i), b); err != nil || n != i {
			t.Fatalf("frame %d: %d, %v", i, n, err)
		}
	}
	name, size, err := w.Finish()
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size {
		t.Fatalf("%v, %v; want %d bytes", info, err, size)
	}
	return path, name
}

func sample() [][]byte {
	return [][]byte{bytes.Repeat([]byte("a"), 4096), bytes.Repeat([]byte("bc"), framefile.Window/2), []byte(strings.Repeat("guest memory ", 316))[:4096]}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		var want [][]byte
		for range rapid.IntRange(1, 20).Draw(t, "frames") {
			seed := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "content")
			want = append(want, bytes.Repeat(seed, rapid.IntRange(1, framefile.Window/len(seed)).Draw(t, "times")))
		}
		path, name := write(t, dir, want...)
		defer os.Remove(path)
		f, err := framefile.Open(path, name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if f.Frames() != len(want) || f.Name() != name {
			t.Fatalf("%d frames of %s", f.Frames(), f.Name())
		}
		for i, w := range want {
			got, err := f.Read(i, []byte("x"))
			if err != nil || !bytes.Equal(got, w) || f.ContentSize(i) != int64(len(w)) || f.Window(i) != uint64(i) {
				t.Fatalf("frame %d: %d bytes of window %d, %v", i, len(got), f.Window(i), err)
			}
		}
		if err := f.Verify(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		// A copy of all frames is the same file.
		var again bytes.Buffer
		c := framefile.NewWriter(&again)
		for i := range want {
			if _, err := c.Copy(f, i); err != nil {
				t.Fatal(err)
			}
		}
		if n, _, err := c.Finish(); n != name || err != nil {
			t.Fatalf("copied to %s, %v; want %s", n, err, name)
		}
	})
}

// verify opens and reads a file whole.
func verify(path, name string) error {
	f, err := framefile.Open(path, name)
	if err != nil {
		return err
	}
	return errors.Join(f.Verify(context.Background(), nil), f.Close())
}

// TestEveryBit: whatever bit flips, it is found, and the place that is named
// holds it.
func TestEveryBit(t *testing.T) {
	t.Parallel()
	path, name := write(t, t.TempDir(), sample()...)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 8 * len(data) {
		if _, err := f.WriteAt([]byte{data[i/8] ^ 1<<(i%8)}, int64(i/8)); err != nil {
			t.Fatal(err)
		}
		err := verify(path, name)
		d, ok := errors.AsType[*framefile.Damage](err)
		if !ok || d.Offset > int64(i/8) {
			t.Fatalf("bit %d of byte %d: %v", i%8, i/8, err)
		}
		if _, err := f.WriteAt(data[i/8:i/8+1], int64(i/8)); err != nil {
			t.Fatal(err)
		}
	}
	if err := verify(path, name); err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(data[:n], 0); err != nil {
			t.Fatal(err)
		}
		if _, ok := errors.AsType[*framefile.Damage](verify(path, name)); !ok {
			t.Fatalf("cut at %d: %v", n, verify(path, name))
		}
	}
}

// TestCrafted: files whose name fits their index, and whose index no release
// writes.
func TestCrafted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, _ := write(t, dir, sample()...)
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	at := int(binary.LittleEndian.Uint64(data[len(data)-16:]))
	for what, change := range map[string]func(index []byte){
		"a frame before the file": func(b []byte) { binary.LittleEndian.PutUint64(b[8:], 0) },
		"a frame far away":        func(b []byte) { binary.LittleEndian.PutUint64(b[8:], 1<<63) },
		"a gap":                   func(b []byte) { binary.LittleEndian.PutUint64(b[56+8:], uint64(at-1)) },
		"a huge frame":            func(b []byte) { binary.LittleEndian.PutUint32(b[16:], 1<<31) },
		"huge content":            func(b []byte) { binary.LittleEndian.PutUint32(b[20:], 1<<31) },
		"no content":              func(b []byte) { binary.LittleEndian.PutUint32(b[20:], 0) },
	} {
		bad := bytes.Clone(data)
		change(bad[at:])
		sum := sha256.Sum256(bad[at:])
		path := filepath.Join(dir, "bad")
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := framefile.Open(path, hex.EncodeToString(sum[:])); err == nil {
			t.Errorf("%s is opened", what)
		}
	}
	for _, name := range []string{"", "../x", strings.Repeat("A", 64), strings.Repeat("0", 63), strings.Repeat("0", 63) + "/"} {
		if _, err := framefile.Open(good, name); err == nil || framefile.ParseName(name) == nil {
			t.Errorf("%q is a name", name)
		}
	}
	if _, err := framefile.Open(good, strings.Repeat("0", 64)); err == nil {
		t.Error("a file is opened under another name")
	}
	if _, err := framefile.Open(filepath.Join(dir, "none"), strings.Repeat("0", 64)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestLyingFrame: a frame that does not decompress to what its index says.
func TestLyingFrame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, _ := write(t, dir, sample()...)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := int(binary.LittleEndian.Uint64(data[len(data)-16:]))
	binary.LittleEndian.PutUint32(data[at+20:], 8192)
	sum := sha256.Sum256(data[at:])
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := framefile.Open(path, hex.EncodeToString(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Read(0, nil); err == nil {
		t.Error("it is read")
	}
	if _, err := f.Read(1, nil); err != nil {
		t.Error(err)
	}
}

func TestWriterRefuses(t *testing.T) {
	t.Parallel()
	w := framefile.NewWriter(&bytes.Buffer{})
	for _, n := range []int{0, framefile.Window + 1} {
		if _, err := w.Add(0, make([]byte, n)); err == nil {
			t.Errorf("a frame of %d bytes is added", n)
		}
	}
	if _, _, err := w.Finish(); err == nil {
		t.Error("a file without frames is finished")
	}
}
