package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// maxLinks bounds how many files with several names are remembered; further
// ones appear in the archive once per name.
const maxLinks = 64 << 10

type inode struct{ dev, ino uint64 }

// archive is a tar archive on its way to the host.
type archive struct {
	op    *operation
	w     *tar.Writer
	names map[inode]string // of files that have more names
	buf   []byte
}

// tarOut sends a tree, or one file, as a tar archive with names relative to it.
func (op *operation) tarOut() error {
	a := &archive{op: op, names: map[inode]string{}, buf: make([]byte, piece)}
	// Headers are small; without the buffer each would be a frame.
	out := &gathered{op: op}
	a.w = tar.NewWriter(out)
	var dir *os.Root
	err := op.step(func() (err error) {
		dir, err = op.dir(op.req.Path)
		return err
	})
	switch {
	case err == nil:
		defer dir.Close()
		err = a.tree(dir, "")
	case errors.Is(err, syscall.ENOTDIR):
		err = a.one()
	}
	if err != nil {
		return err
	}
	if err := a.w.Close(); err != nil {
		return fmt.Errorf("end archive: %w", err)
	}
	return out.flush()
}

// one archives the single file that the path names.
func (a *archive) one() error {
	var f *os.File
	var info fs.FileInfo
	err := a.op.step(func() (err error) {
		if f, err = a.op.resolve(a.op.req.Path, syscall.O_RDONLY|syscall.O_NONBLOCK); err != nil {
			return err
		}
		info, err = f.Stat()
		return err
	})
	if f != nil {
		defer f.Close()
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return protocol.Errorf(protocol.CodeInvalidArgument, "tar-out %s: it is %s", a.op.req.Path, kind(info.Mode()))
	}
	return a.file(f, info, path.Base(a.op.req.Path))
}

// tree archives what is in dir; prefix is dir's name in the archive.
func (a *archive) tree(dir *os.Root, prefix string) error {
	var f *os.File
	err := a.op.step(func() (err error) {
		f, err = dir.Open(".")
		return err
	})
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		var entries []fs.DirEntry
		err := a.op.step(func() (err error) {
			entries, err = f.ReadDir(batch)
			return err
		})
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := ignoreMissing(a.entry(dir, e.Name(), prefix)); err != nil {
				return err
			}
		}
	}
}

// entry archives one name of dir. What is removed meanwhile is fs.ErrNotExist
// before anything of it was sent.
func (a *archive) entry(dir *os.Root, name, prefix string) error {
	var info fs.FileInfo
	var target string
	var f *os.File
	var sub *os.Root
	err := a.op.step(func() (err error) {
		if info, err = dir.Lstat(name); err != nil {
			return err
		}
		switch m := info.Mode(); {
		case m&fs.ModeSymlink != 0:
			target, err = dir.Readlink(name)
		case m.IsDir():
			sub, err = dir.OpenRoot(name)
		case m.IsRegular():
			if f, err = dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0); err != nil {
				return err
			}
			info, err = f.Stat() // of what was opened
		}
		return err
	})
	if f != nil {
		defer f.Close()
	}
	if sub != nil {
		defer sub.Close()
	}
	if err != nil {
		return err
	}
	full := prefix + name
	switch m := info.Mode(); {
	case m&fs.ModeSymlink != 0:
		return a.header(info, full, target)
	case m.IsDir() && sub != nil:
		if err := a.header(info, full+"/", ""); err != nil {
			return err
		}
		return a.tree(sub, full+"/")
	case m.IsRegular() && f != nil:
		return a.file(f, info, full)
	}
	return nil
}

func (a *archive) header(info fs.FileInfo, name, target string) error {
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return &entryError{name, err}
	}
	h.Name = name
	h.Format = tar.FormatPAX // exact times, long names
	h.Uname, h.Gname = "", ""
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if err := a.w.WriteHeader(h); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	return nil
}

// file archives a regular file, or its name if another one was archived.
func (a *archive) file(f *os.File, info fs.FileInfo, name string) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
		key := inode{st.Dev, st.Ino}
		if first, known := a.names[key]; known {
			return a.link(info, name, first)
		}
		if len(a.names) < maxLinks {
			a.names[key] = name
		}
	}
	if err := a.header(info, name, ""); err != nil {
		return err
	}
	for left := info.Size(); left > 0; {
		n := int(min(left, int64(len(a.buf))))
		err := a.op.step(func() error {
			got, err := io.ReadFull(f, a.buf[:n])
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				clear(a.buf[got:n]) // it became shorter; the header has gone out
				err = nil
			}
			return err
		})
		if err != nil {
			return &entryError{name, err}
		}
		if _, err := a.w.Write(a.buf[:n]); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
		left -= int64(n)
	}
	return nil
}

func (a *archive) link(info fs.FileInfo, name, first string) error {
	h := &tar.Header{
		Typeflag: tar.TypeLink, Name: name, Linkname: first, Format: tar.FormatPAX,
		Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(),
	}
	if err := a.w.WriteHeader(h); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	return nil
}

// gathered collects small writes to frames.
type gathered struct {
	op  *operation
	buf []byte
}

func (g *gathered) Write(p []byte) (int, error) {
	if len(g.buf)+len(p) > piece {
		if err := g.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) >= piece {
		return g.op.Write(p)
	}
	g.buf = append(g.buf, p...)
	return len(p), nil
}

func (g *gathered) flush() error {
	if len(g.buf) == 0 {
		return nil
	}
	_, err := g.op.Write(g.buf)
	g.buf = g.buf[:0]
	return err
}
