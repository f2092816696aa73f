package image_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/image"
)

// fakeModule is an ELF object that has nothing but a .modinfo section.
func fakeModule(modinfo ...string) []byte {
	const names = "\x00.modinfo\x00.shstrtab\x00"
	info := strings.Join(modinfo, "\x00") + "\x00"
	var b bytes.Buffer
	le := binary.LittleEndian
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	table := uint64(64 + len(info) + len(names))
	for _, v := range []any{uint16(1), uint16(62), uint32(1), uint64(0), uint64(0), table, uint32(0),
		uint16(64), uint16(0), uint16(0), uint16(64), uint16(3), uint16(2)} {
		b.Write(must(binary.Append(nil, le, v)))
	}
	b.WriteString(info + names)
	section := func(name, kind uint32, offset, size uint64) {
		for _, v := range []any{name, kind, uint64(0), uint64(0), offset, size, uint32(0), uint32(0), uint64(1), uint64(0)} {
			b.Write(must(binary.Append(nil, le, v)))
		}
	}
	section(0, 0, 0, 0)
	section(1, 1, 64, uint64(len(info)))
	section(10, 3, uint64(64+len(info)), uint64(len(names)))
	return b.Bytes()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// fakeKernel writes what a bzImage has in its header.
func fakeKernel(t *testing.T, release string) string {
	t.Helper()
	b := make([]byte, 0x400)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], 0x100)
	copy(b[0x300:], release+" (builder) #1\x00")
	path := filepath.Join(t.TempDir(), "bzImage")
	write(t, path, b)
	return path
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// fakeModules is a modules directory in which ext4 and overlay are built in.
func fakeModules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "modules.builtin"), []byte("kernel/fs/ext4/ext4.ko\nkernel/fs/overlayfs/overlay.ko\nkernel/crypto/built_in.ko\n"))
	for path, info := range map[string][]string{
		"virtio/virtio.ko":                    {"depends="},
		"virtio/virtio_ring.ko":               {"depends=virtio"},
		"virtio/virtio_pci.ko":                {"license=GPL", "depends=virtio_ring,virtio,built-in"},
		"block/virtio_blk.ko":                 {"depends=virtio,virtio_ring", "softdep=pre: soft-one absent post: virtio_pci"},
		"lib/soft-one.ko":                     {"depends="},
		"char/virtio_console.ko":              {"depends=virtio"},
		"char/virtio-rng.ko":                  {"depends="},
		"fs/fuse.ko":                          {"depends="},
		"net/vsock.ko":                        {"depends="},
		"net/vmw_vsock_virtio_transport.ko":   {"depends=vsock"},
		"net/never.ko":                        {"depends="},
		"virtio/built-in-but-not-listed.ko":   {"depends="},
		"virtio/virtio_pci_not_this_one.ko":   {"depends="},
		"drivers/crypto/virtio_blk_crypto.ko": {"depends="},
	} {
		write(t, filepath.Join(dir, "kernel", path), fakeModule(info...))
	}
	// Known under another spelling than virtio_pci's depends= gives it.
	write(t, filepath.Join(dir, "modules.builtin"), []byte("kernel/fs/ext4/ext4.ko\nkernel/fs/overlayfs/overlay.ko\nkernel/crypto/built_in.ko\n"))
	return dir
}

func newCache(t *testing.T) (*image.Cache, image.Options) {
	t.Helper()
	opt := image.Options{Dir: filepath.Join(t.TempDir(), "cache"), Kernel: fakeKernel(t, "6.1.0-test"), ModulesDir: fakeModules(t)}
	return image.New(opt), opt
}
