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

// content is a checkpoint whose files are open: it can be read to the end,
// whatever is removed meanwhile.
type content struct {
	manifest Manifest
	state    *os.File
	pages    pagesFile

	// Of its base; zero where only the files of the checkpoint are wanted.
	base BaseManifest
	ram  *os.File
}

// content opens the files of a checkpoint and of its base.
func (s *Store) content(id protocol.CheckpointID) (c *content, err error) {
	err = s.steady(id, func(m Manifest) (err error) {
		if c, err = s.files(id); err != nil {
			return err
		}
		if err = s.CheckBase(c.manifest.Base); err == nil {
			c.base, err = s.Base(c.manifest.Base)
		}
		if err == nil {
			err = c.openRAM(s.baseDir(c.base.ID))
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", checkpointName(id), err), c.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// openRAM opens what lies in the directory of the base.
func (c *content) openRAM(dir string) (err error) {
	if c.ram, _, err = openRegular(filepath.Join(dir, nameRAM)); err != nil {
		return unusable(baseName(c.base.ID), nameRAM, err)
	}
	return nil
}

// Close closes the files.
func (c *content) Close() error {
	var errs []error
	for _, f := range []*os.File{c.ram, c.state} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if c.pages != nil {
		errs = append(errs, c.pages.Close())
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
	for _, r := range v.within(off, end) {
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

// within is the runs that overlap a part of the memory.
func (v *view) within(off, end int64) []placed {
	first, _ := slices.BinarySearchFunc(v.runs, off, func(r placed, off int64) int { return cmp.Compare(r.Offset+r.Length, off+1) })
	last, _ := slices.BinarySearchFunc(v.runs[first:], end, func(r placed, end int64) int { return cmp.Compare(r.Offset, end) })
	return v.runs[first : first+last]
}

// sparse tells whether a piece is zeros for sure, without reading it.
func (v *view) sparse(off, length int64) bool {
	data, err := unix.Seek(int(v.ram.Fd()), off, unix.SEEK_DATA)
	if !errors.Is(err, unix.ENXIO) && (err != nil || data < off+length) {
		return false
	}
	return len(v.within(off, off+length)) == 0
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
