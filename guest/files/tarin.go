package files

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// unpack is a tar archive on its way into a directory.
type unpack struct {
	op     *operation
	dir    *os.Root
	buf    []byte
	open   []*tar.Header // directories that hold the current entry, outermost first
	escape error         // os.Root's refusal of a path, which has no exported name
}

// tarIn unpacks an archive into an existing directory.
func (op *operation) tarIn() error {
	u := &unpack{op: op, buf: make([]byte, piece)}
	err := op.step(func() (err error) {
		u.dir, err = op.dir(op.req.Path)
		return err
	})
	if err != nil {
		return err
	}
	defer u.dir.Close()
	_, refusal := u.dir.Lstat("..")
	u.escape = bare(refusal)
	in := &content{op: op}
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.bad(err)
		}
		if err := u.entry(h, r); err != nil {
			return err
		}
	}
	if err := u.leave(""); err != nil {
		return err
	}
	// What follows the archive's end is padding.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return u.bad(err)
	}
	return nil
}

// bad is an error of reading the archive: of the stream, or of its content.
func (u *unpack) bad(err error) error {
	if u.op.broken || protocol.CodeOf(err) != protocol.CodeInternal {
		return err
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "tar-in %s: bad archive: %v", u.op.req.Path, err)
}

// local checks a name of the archive and makes it relative to the directory.
func local(name string) (string, error) {
	if path.IsAbs(name) || strings.IndexByte(name, 0) >= 0 {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "tar-in: the name %q in the archive is absolute or holds a NUL byte", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", protocol.Errorf(protocol.CodeInvalidArgument, "tar-in: the name %q in the archive holds ..", name)
		}
	}
	return path.Clean(name), nil
}

func (u *unpack) entry(h *tar.Header, r io.Reader) error {
	name, err := local(h.Name)
	if err != nil {
		return err
	}
	h.Name = name
	if err := u.leave(name); err != nil {
		return err
	}
	if name == "." {
		return nil // the directory itself is the caller's
	}
	err = u.place(h, name, r)
	if _, typed := errors.AsType[*protocol.Error](err); err == nil || typed || u.op.broken {
		return err
	}
	if errors.Is(err, u.escape) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "tar-in: %q leads out of the directory through a symbolic link", h.Name)
	}
	return &entryError{name, err}
}

func (u *unpack) place(h *tar.Header, name string, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return u.directory(h, name)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(h, name, r)
	case tar.TypeSymlink:
		return u.op.step(func() error {
			if err := u.clear(name); err != nil {
				return err
			}
			if err := u.dir.Symlink(h.Linkname, name); err != nil {
				return err
			}
			return u.finish(h, name)
		})
	case tar.TypeLink:
		target, err := local(h.Linkname)
		if err != nil {
			return err
		}
		return u.op.step(func() error {
			if target == name {
				return nil
			}
			if err := u.clear(name); err != nil {
				return err
			}
			return u.dir.Link(target, name)
		})
	case tar.TypeXGlobalHeader:
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "tar-in: %q is neither file, directory nor link (type %q)", name, h.Typeflag)
}

// clear makes place for name: parents exist, and no file has it.
func (u *unpack) clear(name string) error {
	if above := path.Dir(name); above != "." {
		if err := u.dir.MkdirAll(above, 0o755); err != nil {
			return err
		}
	}
	info, err := u.dir.Lstat(name)
	if err != nil {
		return ignoreMissing(err)
	}
	if info.IsDir() {
		return protocol.Errorf(protocol.CodeInvalidArgument, "tar-in: there is a directory %q where the archive has a file", name)
	}
	return u.dir.Remove(name)
}

func (u *unpack) directory(h *tar.Header, name string) error {
	return u.op.step(func() error {
		err := u.dir.MkdirAll(name, 0o755)
		if err != nil {
			return err
		}
		info, err := u.dir.Lstat(name)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return nil // a link to one stays as it is
		}
		u.open = append(u.open, h)
		return nil
	})
}

// leave finishes the directories that do not hold name. Not earlier: entries
// change a directory's time, and its mode may forbid them. An archive that
// comes back to a directory which it had left changes its time again.
func (u *unpack) leave(name string) error {
	for len(u.open) > 0 {
		last := u.open[len(u.open)-1]
		if name != "" && strings.HasPrefix(name+"/", last.Name+"/") {
			return nil
		}
		u.open = u.open[:len(u.open)-1]
		if err := u.op.step(func() error { return u.finish(last, last.Name) }); err != nil {
			return &entryError{last.Name, err}
		}
	}
	return nil
}

func (u *unpack) file(h *tar.Header, name string, r io.Reader) (err error) {
	var f *os.File
	err = u.op.step(func() (err error) {
		if err := u.clear(name); err != nil {
			return err
		}
		f, err = u.dir.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		f.Close() // again, if all went well
		if err == nil {
			return
		}
		u.op.gate.enter(withoutEnd(u.op.ctx))
		defer u.op.gate.leave()
		err = errors.Join(err, u.dir.Remove(name)) // half a file
	}()
	for {
		n, readErr := fill(r, u.buf)
		err := u.op.step(func() error {
			if err := fault.Point("files.tar.write"); err != nil {
				return err
			}
			_, err := f.Write(u.buf[:n])
			return err
		})
		if err != nil {
			return err
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
		if readErr != nil {
			return u.bad(readErr)
		}
	}
	return u.op.step(func() error {
		if err := f.Close(); err != nil {
			return err
		}
		return u.finish(h, name)
	})
}

// fill is io.ReadFull, but tells the end of an entry from that of a truncated
// archive.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var got int
		got, err = r.Read(buf[n:])
		n += got
	}
	return n, err
}

// finish gives an entry its owner, mode and time.
func (u *unpack) finish(h *tar.Header, name string) error {
	if err := u.dir.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink {
		if err := chmod(u.dir, name, uint32(h.Mode)); err != nil {
			return err
		}
	}
	return u.setTime(name, h.ModTime)
}

// setTime sets the time of name itself, be it a link; os.Root can not.
func (u *unpack) setTime(name string, t time.Time) error {
	above, err := u.dir.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer above.Close()
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return &fs.PathError{Op: "set time", Path: name, Err: err}
	}
	err = unix.UtimesNanoAt(int(above.Fd()), path.Base(name), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &fs.PathError{Op: "set time", Path: name, Err: err}
	}
	return nil
}
