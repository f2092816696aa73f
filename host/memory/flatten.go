package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Flatten makes the base that b with d is, in a new file at dst, which it
// removes when that fails. On a filesystem with reflinks only the delta is
// written. Nothing is fsynced.
func Flatten(ctx context.Context, b *Base, d *Delta, id protocol.BaseID, dst string) (*Base, error) {
	if err := d.check(b.size); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, diskError("create base", err)
	}
	err = flattenInto(ctx, f, b, d)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = diskError("write base", cerr)
	}
	if err == nil {
		err = Protect(dst)
	}
	var out *Base
	if err == nil {
		out, err = OpenBase(id, dst)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("flatten base %s: %w", b.id, err), os.Remove(dst))
	}
	return out, nil
}

// FlattenMemfd makes the base that b with d is in memory only, so that
// children can start before any file is written. It is gone when it is closed
// and no machine maps it.
func FlattenMemfd(ctx context.Context, b *Base, d *Delta, id protocol.BaseID) (*Base, error) {
	if err := d.check(b.size); err != nil {
		return nil, err
	}
	memfd, err := newMemfd(string(id), b.size)
	if err != nil {
		return nil, err
	}
	err = flattenInto(ctx, memfd, b, d)
	if err == nil {
		err = seal(memfd)
	}
	var out *Base
	if err == nil {
		out, err = newBase(id, "", memfd)
	}
	if err != nil {
		memfd.Close()
		return nil, fmt.Errorf("flatten base %s: %w", b.id, err)
	}
	out.memfd = memfd
	return out, nil
}

func flattenInto(ctx context.Context, dst *os.File, b *Base, d *Delta) error {
	if err := b.cloneTo(ctx, dst); err != nil {
		return err
	}
	return d.each(ctx, func(b *batch) error {
		if err := fault.Point("memory.flatten.write"); err != nil {
			return diskError("write base", err)
		}
		return b.each(func(r Run, content []byte) error {
			if r.Zero {
				return punch(dst, r.Offset, r.Length)
			}
			if _, err := dst.WriteAt(content, r.Offset); err != nil {
				return diskError("write base", err)
			}
			return nil
		})
	})
}

// cloneTo makes dst, empty or of the base's size, equal to the base: by
// sharing its blocks if the filesystem can, else by copying its data.
func (b *Base) cloneTo(ctx context.Context, dst *os.File) error {
	b.mu.Lock()
	file := b.file
	b.mu.Unlock()
	if file != nil {
		// EOPNOTSUPP, EXDEV, EINVAL and the like: no reflinks here.
		if unix.IoctlFileClone(int(dst.Fd()), int(file.Fd())) == nil {
			return nil
		}
	}
	src, err := b.source()
	if err != nil {
		return err
	}
	if err := dst.Truncate(b.size); err != nil {
		return diskError("size base", err)
	}
	return copyExtents(ctx, dst, src, b.extents)
}

// copyExtents copies these parts of src to the same places of dst.
func copyExtents(ctx context.Context, dst, src *os.File, extents []Extent) error {
	buf := batches.Get().(*batch)
	defer batches.Put(buf)
	for _, e := range extents {
		for at := e.Offset; at < e.end(); {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := fault.Point("memory.copy.write"); err != nil {
				return diskError("write base", err)
			}
			p := buf.data[:min(int64(len(buf.data)), e.end()-at)]
			if _, err := src.ReadAt(p, at); err != nil {
				if errors.Is(err, io.EOF) {
					return lost("base %s is cut short at %#x", src.Name(), at)
				}
				return fmt.Errorf("read base: %w", err)
			}
			if _, err := dst.WriteAt(p, at); err != nil {
				return diskError("write base", err)
			}
			at += int64(len(p))
		}
	}
	return nil
}

// punch makes a part of the file zeros, without blocks if the filesystem can.
func punch(f *os.File, off, length int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		if err != nil {
			return diskError("write base", err)
		}
		return nil
	}
	for at := int64(0); at < length; at += maxRun {
		if _, err := f.WriteAt(zeroRun[:min(maxRun, length-at)], off+at); err != nil {
			return diskError("write base", err)
		}
	}
	return nil
}

// Protect takes a RAM image over from the machine that wrote it, which must be
// dead: the file belongs to the caller and nobody may write it.
func Protect(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("protect base: %w", err)
	}
	defer f.Close()
	if os.Geteuid() == 0 {
		if err := f.Chown(os.Geteuid(), os.Getegid()); err != nil {
			return fmt.Errorf("protect base: %w", err)
		}
	}
	if err := f.Chmod(0o444); err != nil {
		return fmt.Errorf("protect base: %w", err)
	}
	return nil
}
