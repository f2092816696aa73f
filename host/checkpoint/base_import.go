package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// ImportBase takes a base from another store, as from the shared cache of
// templates: by hard link where the file system allows it, so that it costs
// nothing and stays when the cache drops it, else by copy. A base that is
// there already stays as it is.
func (s *Store) ImportBase(ctx context.Context, from *Store, id protocol.BaseID) error {
	// Checked there, since from here on it counts as of this boot.
	if err := from.CheckBase(id); err != nil {
		return err
	}
	m, err := from.Base(id)
	if err != nil {
		return err
	}
	if _, err := s.Base(id); err == nil {
		return nil
	}
	p, err := s.BeginBase(id)
	if err != nil {
		return err
	}
	defer p.Discard()
	dir := from.baseDir(id)
	linked, err := linkOrCopy(ctx, labelBaseImport, filepath.Join(dir, nameRAM), p.RAMPath())
	if err == nil && m.State != nil {
		_, err = linkOrCopy(ctx, labelBaseImport, filepath.Join(dir, nameState), p.StatePath())
	}
	if err != nil {
		return typed(protocol.CodeCaptureFailed, "import "+baseName(id), err)
	}
	if linked {
		p.ram = m.RAM
	}
	// The checkpoint it was made from belongs to the other store.
	m.From.Checkpoint = ""
	err = p.Publish(ctx, m)
	if errors.Is(err, fs.ErrExist) {
		return nil // another import was faster
	}
	return err
}

func linkOrCopy(ctx context.Context, label, from, to string) (linked bool, err error) {
	if err := fault.Point(label); err != nil {
		return false, err
	}
	if os.Link(from, to) == nil {
		return true, nil
	}
	src, _, err := openRegular(from)
	if err != nil {
		return false, err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, errors.Join(err, src.Close())
	}
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) != nil {
		err = copySparse(ctx, dst, src)
	}
	return false, errors.Join(err, dst.Close(), src.Close())
}

// copySparse copies and leaves holes for pieces of zeros.
func copySparse(ctx context.Context, dst, src *os.File) error {
	const piece = 64 << 10
	var at int64
	zero, buf := make([]byte, piece), make([]byte, piece)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.ReadFull(src, buf)
		if n > 0 && !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := dst.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return dst.Truncate(at)
		}
		if err != nil {
			return err
		}
	}
}
