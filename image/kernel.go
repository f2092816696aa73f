package image

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kernel is what a guest boots.
type Kernel struct {
	Path       string // bzImage
	ModulesDir string // the needed modules and modules.builtin; "" when all is built in
	Release    string // as uname -r prints it
	Digest     string // of the image and its modules
}

const (
	kindKernel    = "kernel"
	kernelPackage = "linux-image-cloud-amd64"
)

// Kernel returns the guest kernel: the one of Options, else Debian's cloud
// kernel, installed or from its package.
func (c *Cache) Kernel(ctx context.Context) (Kernel, error) {
	r := recipe{kind: kindKernel, pinned: true, build: c.buildKernel}
	inputs := map[string]any{"recipe": 1, "source": kernelPackage}
	if c.opt.Kernel != "" {
		own, err := c.ownInputs()
		if err != nil {
			return Kernel{}, &Error{"use kernel " + c.opt.Kernel, errors.Join(ErrNoKernel, err),
				"name a readable bzImage and the modules directory that belongs to it"}
		}
		inputs = own
	}
	r.inputs = inputs
	e, err := c.obtain(ctx, r)
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Path: e.path("vmlinuz"), Release: e.Release, Digest: e.Digest()}
	if _, err := os.Stat(e.path("modules")); err == nil {
		k.ModulesDir = e.path("modules")
	}
	return k, nil
}

// ownInputs names a kernel of the user by content, so that a rebuilt one at
// the same path is noticed.
func (c *Cache) ownInputs() (map[string]any, error) {
	_, sum, err := hashFile(c.opt.Kernel)
	if err != nil {
		return nil, err
	}
	order, err := loadOrder(c.opt.ModulesDir)
	if err != nil {
		return nil, err
	}
	return map[string]any{"recipe": 1, "source": "own", "vmlinuz": sum, "modules": digestModules(order)}, nil
}

func (c *Cache) buildKernel(ctx context.Context, dir string, m *Manifest) error {
	vmlinuz, modules := c.opt.Kernel, c.opt.ModulesDir
	if vmlinuz == "" {
		vmlinuz, modules = installedKernel("/boot", "/lib/modules")
	}
	if vmlinuz == "" {
		scratch := filepath.Join(dir, "package")
		var err error
		if vmlinuz, modules, err = c.unpackKernel(ctx, scratch); err != nil {
			return err
		}
		defer os.RemoveAll(scratch)
		// Before the result is measured, also when the rest succeeds.
		if err := adoptKernel(dir, vmlinuz, modules, m); err != nil {
			return err
		}
		return os.RemoveAll(scratch)
	}
	c.opt.Progress("copying kernel "+vmlinuz, 0, 0)
	return adoptKernel(dir, vmlinuz, modules, m)
}

// adoptKernel copies an image and those of its modules that a guest needs.
func adoptKernel(dir, vmlinuz, modules string, m *Manifest) error {
	var err error
	if m.Release, err = kernelRelease(vmlinuz); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(dir, "vmlinuz"), vmlinuz); err != nil {
		return err
	}
	if modules == "" {
		return nil
	}
	order, err := loadOrder(modules)
	if err != nil {
		return err
	}
	for _, mod := range order {
		path := filepath.Join(dir, "modules", mod.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, mod.data, 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "modules"), 0o755); err != nil {
		return err
	}
	return copyFile(filepath.Join(dir, "modules", "modules.builtin"), filepath.Join(modules, "modules.builtin"))
}

// installedKernel finds the newest installed cloud kernel that has its modules.
func installedKernel(boot, lib string) (vmlinuz, modules string) {
	found, err := filepath.Glob(filepath.Join(boot, "vmlinuz-*-cloud-amd64"))
	if err != nil {
		return "", ""
	}
	slices.SortFunc(found, compareVersions)
	for _, path := range slices.Backward(found) {
		dir := filepath.Join(lib, strings.TrimPrefix(filepath.Base(path), "vmlinuz-"))
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		f.Close()
		if _, err := os.Stat(filepath.Join(dir, "modules.builtin")); err == nil {
			return path, dir
		}
	}
	return "", ""
}

var digits = regexp.MustCompile(`\d+|\D+`)

// compareVersions orders 6.1.0-9 before 6.1.0-57.
func compareVersions(a, b string) int {
	return slices.CompareFunc(digits.FindAllString(a, -1), digits.FindAllString(b, -1), func(x, y string) int {
		m, errX := strconv.Atoi(x)
		n, errY := strconv.Atoi(y)
		if errX == nil && errY == nil {
			return m - n
		}
		return strings.Compare(x, y)
	})
}

// kernelRelease reads the version out of a bzImage: the setup header has its
// magic at 0x202 and at 0x20e the offset, less 0x200, of the version's text
// (Documentation/arch/x86/boot.rst).
func kernelRelease(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 0x210)
	if _, err := io.ReadFull(f, head); err != nil || string(head[0x202:0x206]) != "HdrS" {
		return "", &Error{"read kernel " + path, fmt.Errorf("%w: not a bzImage", ErrNoKernel), "name the compressed kernel (vmlinuz, bzImage)"}
	}
	text := make([]byte, 128)
	n, err := f.ReadAt(text, int64(binary.LittleEndian.Uint16(head[0x20e:]))+0x200)
	if n == 0 {
		return "", fmt.Errorf("read the version in %s: %w", path, err)
	}
	release, _, _ := strings.Cut(string(text[:n]), " ")
	release, _, _ = strings.Cut(release, "\x00")
	return release, nil
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
