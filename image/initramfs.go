package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

const (
	kindInitramfs = "initramfs"
	initramfsName = "initramfs.cpio"
)

// Initramfs returns the archive the kernel starts from: agentd (the path of
// its binary) as /init, and under /modules the modules a guest needs with their
// order of loading in /modules/order.
//
// It is not compressed: an emulated CPU spends more on decompression than QEMU
// on handing over a few more megabytes, and the guest gives the memory back.
func (c *Cache) Initramfs(ctx context.Context, k Kernel, agentd string) (path, digest string, err error) {
	_, sum, err := hashFile(agentd)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", agentdMissing(agentd)
	}
	if err != nil {
		return "", "", fmt.Errorf("read agentd: %w", err)
	}
	e, err := c.obtain(ctx, recipe{
		kind:   kindInitramfs,
		inputs: map[string]any{"recipe": 1, "kernel": k.Digest, "agentd": sum, "modules": fmt.Sprint(wanted)},
		build: func(_ context.Context, dir string, m *Manifest) error {
			c.opt.Progress("making the initramfs", 0, 0)
			m.Release = k.Release
			return writeInitramfs(filepath.Join(dir, initramfsName), k.ModulesDir, agentd)
		},
	})
	if err != nil {
		return "", "", err
	}
	return e.path(initramfsName), e.Digest(), nil
}

func writeInitramfs(dst, modulesDir, agentd string) error {
	order, err := loadOrder(modulesDir)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(agentd)
	if err != nil {
		return err
	}
	f, err := os.Create(dst)
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(f, 1<<20)
	return errors.Join(writeCPIO(buf, order, program), buf.Flush(), f.Close())
}

func writeCPIO(w *bufio.Writer, order []module, program []byte) error {
	entries := []cpioEntry{}
	dirs := map[string]bool{}
	mkdir := func(name string) {
		for i := range name {
			if name[i] == '/' && !dirs[name[:i]] {
				dirs[name[:i]] = true
				entries = append(entries, cpioEntry{name: name[:i], mode: modeDir | 0o755})
			}
		}
		if !dirs[name] {
			dirs[name] = true
			entries = append(entries, cpioEntry{name: name, mode: modeDir | 0o755})
		}
	}
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "mnt", "modules"} {
		mkdir(d)
	}
	// The kernel opens /dev/console for /init before anything is mounted.
	entries = append(entries,
		cpioEntry{name: "dev/console", mode: modeChar | 0o600, major: 5, minor: 1},
		cpioEntry{name: "dev/null", mode: modeChar | 0o666, major: 1, minor: 3},
		cpioEntry{name: "init", mode: modeFile | 0o755, data: program})
	var list strings.Builder
	for _, m := range order {
		mkdir(path.Join("modules", path.Dir(m.path)))
		entries = append(entries, cpioEntry{name: "modules/" + m.path, mode: modeFile | 0o644, data: m.data})
		fmt.Fprintln(&list, m.path)
	}
	entries = append(entries, cpioEntry{name: "modules/order", mode: modeFile | 0o644, data: []byte(list.String())})
	archive := &cpioWriter{w: w}
	for _, e := range entries {
		if err := archive.add(e); err != nil {
			return err
		}
	}
	return archive.close()
}

// digestModules names a load order with all content.
func digestModules(order []module) string {
	h := sha256.New()
	for _, m := range order {
		sum := sha256.Sum256(m.data)
		fmt.Fprintf(h, "%s %x\n", m.path, sum)
	}
	return hex.EncodeToString(h.Sum(nil))
}
