package image_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/ratoon-project/ratoon/image"
)

type archived struct {
	mode uint64
	rdev string
	data []byte
}

// unpack reads a newc archive, holding each field to the format.
func unpack(t *testing.T, path string) (names []string, files map[string]archived) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]archived{}
	for pos := 0; ; {
		if string(b[pos:pos+6]) != "070701" {
			t.Fatalf("no header at %d: %q", pos, b[pos:pos+6])
		}
		field := func(i int) uint64 {
			v, err := strconv.ParseUint(string(b[pos+6+8*i:pos+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		size, nameSize := int(field(6)), int(field(11))
		name := string(b[pos+110 : pos+110+nameSize-1])
		data := (pos + 110 + nameSize + 3) &^ 3
		if name == "TRAILER!!!" {
			return names, files
		}
		names = append(names, name)
		files[name] = archived{field(1), fmt.Sprintf("%d,%d", field(9), field(10)), b[data : data+size]}
		pos = (data + size + 3) &^ 3
	}
}

func TestInitramfs(t *testing.T) {
	t.Parallel()
	c, _ := newCache(t)
	k, err := c.Kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if k.Release != "6.1.0-test" {
		t.Errorf("release %q, want 6.1.0-test", k.Release)
	}
	agentd := filepath.Join(t.TempDir(), "agentd")
	write(t, agentd, []byte("the agent"))
	path, digest, err := c.Initramfs(t.Context(), k, agentd)
	if err != nil {
		t.Fatal(err)
	}
	names, files := unpack(t, path)
	for i, name := range names {
		if dir := filepath.Dir(name); dir != "." && !slices.Contains(names[:i], dir) {
			t.Errorf("%s comes before its directory", name)
		}
	}
	if got := files["init"]; string(got.data) != "the agent" || got.mode != 0o100755 {
		t.Errorf("init: mode %o, %q", got.mode, got.data)
	}
	if got := files["dev/console"]; got.mode != 0o020600 || got.rdev != "5,1" {
		t.Errorf("dev/console: mode %o, device %s; want 20600, 5,1", got.mode, got.rdev)
	}
	got := strings.Fields(string(files["modules/order"].data))
	want := []string{
		"kernel/virtio/virtio.ko", "kernel/virtio/virtio_ring.ko", "kernel/virtio/virtio_pci.ko",
		"kernel/lib/soft-one.ko", "kernel/block/virtio_blk.ko", "kernel/char/virtio_console.ko", "kernel/char/virtio-rng.ko",
		"kernel/fs/fuse.ko", "kernel/net/vsock.ko", "kernel/net/vmw_vsock_virtio_transport.ko",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for _, m := range got {
		if !bytes.HasPrefix(files["modules/"+m].data, []byte("\x7fELF")) {
			t.Errorf("%s is not in the archive", m)
		}
	}
	write(t, agentd, []byte("another agent"))
	if _, other, err := c.Initramfs(t.Context(), k, agentd); err != nil || other == digest {
		t.Errorf("a new agentd gave the initramfs %s of the old one, error %v", other, err)
	}
}

func TestCompressedModules(t *testing.T) {
	t.Parallel()
	_, plain := newCache(t)
	ko := fakeModule("depends=virtio,virtio_ring")
	pack := map[string]func(io.Writer) (io.WriteCloser, error){
		".xz":  func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) },
		".gz":  func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
		".zst": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
	}
	for suffix, open := range pack {
		opt := plain
		opt.Dir, opt.ModulesDir = t.TempDir(), fakeModules(t)
		base := filepath.Join(opt.ModulesDir, "kernel/block/virtio_blk.ko")
		if err := os.Remove(base); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := must(open(&b))
		must(w.Write(ko))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, base+suffix, b.Bytes())
		c := image.New(opt)
		k, err := c.Kernel(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", suffix, err)
		}
		got, err := os.ReadFile(filepath.Join(k.ModulesDir, "kernel/block/virtio_blk.ko"))
		if err != nil || !bytes.Equal(got, ko) {
			t.Errorf("%s: module differs after decompression, error %v", suffix, err)
		}
	}
}

func TestMissingModule(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	if err := os.Remove(filepath.Join(opt.ModulesDir, "kernel/virtio/virtio_ring.ko")); err != nil {
		t.Fatal(err)
	}
	_, err := image.New(opt).Kernel(t.Context())
	if !errors.Is(err, image.ErrMissingModule) || !strings.Contains(err.Error(), "virtio_ring") {
		t.Errorf("got %v, want ErrMissingModule naming virtio_ring", err)
	}
}

func TestKernelRefused(t *testing.T) {
	t.Parallel()
	_, opt := newCache(t)
	write(t, opt.Kernel, []byte("no kernel"))
	_, err := image.New(opt).Kernel(t.Context())
	if e, ok := errors.AsType[*image.Error](err); !errors.Is(err, image.ErrNoKernel) || !ok || e.Remedy == "" {
		t.Errorf("got %v, want ErrNoKernel with a remedy", err)
	}
	opt.Kernel += ".absent"
	if _, err := image.New(opt).Kernel(t.Context()); !errors.Is(err, image.ErrNoKernel) {
		t.Errorf("got %v, want ErrNoKernel", err)
	}
}
