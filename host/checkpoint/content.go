package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

// content is a checkpoint with its base whose files are open: it can be read
// to the end, whatever is removed meanwhile.
type content struct {
	manifest Manifest
	base     BaseManifest
	ram      *os.File
	state    *os.File
	pages    *os.File
}

// content opens the files of a checkpoint.
func (s *Store) content(id protocol.CheckpointID) (*content, error) {
	m, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	if err := s.CheckBase(m.Base); err != nil {
		return nil, fmt.Errorf("%s: %w", checkpointName(id), err)
	}
	b, err := s.Base(m.Base)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", checkpointName(id), err)
	}
	c, err := openContent(s.checkpointDir(id), s.baseDir(b.ID), m, b)
	if err != nil {
		return nil, s.gone(id, err)
	}
	return c, nil
}

// openContent opens what lies in these directories.
func openContent(dir, baseDir string, m Manifest, b BaseManifest) (*content, error) {
	c := &content{manifest: m, base: b}
	var err error
	if c.ram, _, err = openRegular(filepath.Join(baseDir, nameRAM)); err != nil {
		return nil, errors.Join(unusable(baseName(b.ID), nameRAM, err), c.Close())
	}
	if c.state, _, err = openRegular(filepath.Join(dir, nameState)); err != nil {
		return nil, errors.Join(unusable(checkpointName(m.ID), nameState, err), c.Close())
	}
	if c.pages, _, err = openRegular(filepath.Join(dir, namePages)); err != nil {
		return nil, errors.Join(unusable(checkpointName(m.ID), namePages, err), c.Close())
	}
	return c, nil
}

// Close closes the files.
func (c *content) Close() error {
	var errs []error
	for _, f := range []*os.File{c.ram, c.state, c.pages} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// memory is the guest's RAM.
func (c *content) memory() *view {
	v := &view{size: c.base.RAM.Size, ram: c.ram, pages: c.pages}
	var at int64
	for _, r := range c.manifest.Files.Pages.Runs {
		v.runs = append(v.runs, placed{r, at})
		if !r.Zero {
			at += r.Length
		}
	}
	slices.SortFunc(v.runs, func(a, b placed) int { return cmp.Compare(a.Offset, b.Offset) })
	return v
}

// view is guest RAM as a base overlaid by runs.
type view struct {
	size  int64
	ram   *os.File
	pages io.ReaderAt
	runs  []placed // by offset
}

// placed is a run and where its bytes lie in the pages.
type placed struct {
	memory.Run
	at int64
}

// ReadAt implements io.ReaderAt.
func (v *view) ReadAt(p []byte, off int64) (int, error) {
	n, err := v.ram.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	end := off + int64(n)
	first, _ := slices.BinarySearchFunc(v.runs, off, func(r placed, off int64) int { return cmp.Compare(r.Offset+r.Length, off+1) })
	for _, r := range v.runs[first:] {
		if r.Offset >= end {
			break
		}
		from, to := max(r.Offset, off), min(r.Offset+r.Length, end)
		part := p[from-off : to-off]
		if r.Zero {
			clear(part)
		} else if _, err := v.pages.ReadAt(part, r.at+from-r.Offset); err != nil {
			return 0, err
		}
	}
	return n, err
}

// sparse tells whether a piece is zeros for sure, without reading it.
func (v *view) sparse(off, length int64) bool {
	data, err := unix.Seek(int(v.ram.Fd()), off, unix.SEEK_DATA)
	if !errors.Is(err, unix.ENXIO) && (err != nil || data < off+length) {
		return false
	}
	return !slices.ContainsFunc(v.runs, func(r placed) bool { return r.Offset < off+length && r.Offset+r.Length > off })
}

// sameMemory compares guest RAM byte by byte.
func sameMemory(ctx context.Context, a, b *view) (bool, error) {
	if a.size != b.size {
		return false, nil
	}
	x, y := make([]byte, chunk), make([]byte, chunk)
	for off := int64(0); off < a.size; off += chunk {
		if err := context.Cause(ctx); err != nil {
			return false, err
		}
		n := min(chunk, a.size-off)
		if a.sparse(off, n) && b.sparse(off, n) {
			continue
		}
		if _, err := a.ReadAt(x[:n], off); err != nil {
			return false, err
		}
		if _, err := b.ReadAt(y[:n], off); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
	return true, nil
}
