package image

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// wanted lists the modules a guest needs, those first without which it cannot
// reach its root. An optional one may be missing from a kernel.
var wanted = []struct {
	name     string
	optional bool
}{
	{name: "virtio_pci"},
	{name: "virtio_blk"},
	{name: "virtio_console"},
	{name: "ext4"},
	{name: "overlay"},
	{name: "virtio_rng"},
	{name: "fuse"},
	{name: "vsock"},
	{name: "vmw_vsock_virtio_transport"},
	// Connections inside the guest to CID 1.
	{name: "vsock_loopback", optional: true},
	// Tells the guest's kernel that it was cloned, where the VMM has the device.
	{name: "vmgenid", optional: true},
}

// module is one loadable module, decompressed.
type module struct {
	name string // as in /proc/modules
	path string // below the modules directory, without the compression's suffix
	data []byte
}

// loadOrder gives the wanted modules and what they depend on in the order in
// which they must be loaded. It reads the dependencies from the modules
// themselves: modules.dep is made by depmod at installation and is not in the
// package. dir is empty for a kernel that has everything built in.
func loadOrder(dir string) ([]module, error) {
	if dir == "" {
		return nil, nil
	}
	tree, err := readTree(dir)
	if err != nil {
		return nil, fmt.Errorf("read modules: %w", err)
	}
	for _, w := range wanted {
		err := tree.visit(w.name)
		if err != nil && !(w.optional && errors.Is(err, ErrMissingModule)) {
			return nil, err
		}
	}
	return tree.order, nil
}

type moduleTree struct {
	dir     string
	files   map[string]string // module name: path below dir
	builtin map[string]bool
	seen    map[string]bool
	order   []module
}

func readTree(dir string) (*moduleTree, error) {
	t := &moduleTree{dir: dir, files: map[string]string{}, builtin: map[string]bool{}, seen: map[string]bool{}}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(list)) {
		t.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.Contains(d.Name(), ".ko") {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		t.files[moduleName(rel)] = rel
		return err
	})
	return t, err
}

// moduleName is the name the kernel knows a module's file under.
func moduleName(path string) string {
	base, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(base, "-", "_")
}

func (t *moduleTree) visit(name string) error {
	name = strings.ReplaceAll(name, "-", "_")
	if t.seen[name] || t.builtin[name] {
		return nil
	}
	t.seen[name] = true // before its dependencies, so that a cycle ends
	path, ok := t.files[name]
	if !ok {
		return &Error{"order modules", fmt.Errorf("%w: %s is neither built in nor under %s", ErrMissingModule, name, t.dir),
			"use Debian's linux-image-cloud-amd64, or build the kernel with the options in kernel-config/"}
	}
	data, err := readModule(filepath.Join(t.dir, path))
	if err != nil {
		return err
	}
	needs, err := dependencies(data)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, dep := range needs.hard {
		if err := t.visit(dep); err != nil {
			return err
		}
	}
	for _, dep := range needs.soft {
		// A soft dependency may name what another configuration would have.
		if err := t.visit(dep); err != nil && !errors.Is(err, ErrMissingModule) {
			return err
		}
	}
	before, _, _ := strings.Cut(path, ".ko")
	t.order = append(t.order, module{name: name, path: before + ".ko", data: data})
	return nil
}

type moduleNeeds struct{ hard, soft []string }

// dependencies reads the "depends" and "softdep" entries of .modinfo, a
// section of NUL-terminated key=value strings.
func dependencies(ko []byte) (moduleNeeds, error) {
	var needs moduleNeeds
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return needs, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return needs, errors.New("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return needs, err
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			needs.hard = append(needs.hard, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			pre, _, _ := strings.Cut(value, "post:")
			if _, list, ok := strings.Cut(pre, "pre:"); ok {
				needs.soft = append(needs.soft, strings.Fields(list)...)
			}
		}
	}
	return needs, nil
}

// maxModule bounds what a compressed module may grow to.
const maxModule = 64 << 20

func readModule(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	switch filepath.Ext(path) {
	case ".xz":
		r, err = xz.NewReader(f)
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".zst":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(f, zstd.WithDecoderConcurrency(1)); err == nil {
			defer d.Close()
			r = d
		}
	}
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxModule))
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", path, err)
	}
	return data, nil
}
