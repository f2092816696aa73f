package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// batch is how many entries of a directory are read, and sent, at once.
const batch = 256

// withoutEnd is for what must be done also when the operation is cancelled.
func withoutEnd(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// list sends the entries of a directory.
func (op *operation) list() error {
	var dir *os.Root
	var f *os.File
	err := op.step(func() (err error) {
		if dir, err = op.dir(op.req.Path); err != nil {
			return err
		}
		f, err = dir.Open(".")
		return err
	})
	if dir != nil {
		defer dir.Close()
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		var entries []protocol.FileEntry
		var end bool
		err := op.step(func() error {
			names, err := f.ReadDir(batch)
			end = errors.Is(err, io.EOF)
			if err != nil && !end {
				return err
			}
			for _, n := range names {
				e, err := entryOf(dir, n.Name())
				if errors.Is(err, fs.ErrNotExist) {
					continue // removed meanwhile
				}
				if err != nil {
					return err
				}
				entries = append(entries, e)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			if err := op.send(&protocol.FileFrame{Entries: entries}); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
	}
}

func (op *operation) stat() error {
	var e protocol.FileEntry
	err := op.step(func() (err error) {
		if op.req.Path == "/" {
			dir, err := op.dir("/")
			if err != nil {
				return err
			}
			defer dir.Close()
			e, err = entryOf(dir, ".")
			e.Name = "/"
			return err
		}
		dir, name, err := op.parent()
		if err != nil {
			return err
		}
		defer dir.Close()
		e, err = entryOf(dir, name)
		return err
	})
	if err != nil {
		return err
	}
	return op.send(&protocol.FileFrame{Entries: []protocol.FileEntry{e}})
}

func entryOf(dir *os.Root, name string) (protocol.FileEntry, error) {
	info, err := dir.Lstat(name)
	if err != nil {
		return protocol.FileEntry{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return protocol.FileEntry{}, &fs.PathError{Op: "stat", Path: name, Err: errors.ErrUnsupported}
	}
	e := protocol.FileEntry{
		Name: name, Mode: st.Mode, Size: st.Size,
		MTime: info.ModTime().UnixNano(), UID: int(st.Uid), GID: int(st.Gid),
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		e.Target, err = dir.Readlink(name)
	}
	return e, err
}

// remove removes a file or an empty directory, or with Whole whatever is
// there, if anything.
func (op *operation) remove() error {
	var dir *os.Root
	var name string
	err := op.step(func() (err error) {
		if dir, name, err = op.parent(); err != nil || op.req.Whole {
			return err
		}
		return dir.Remove(name)
	})
	if dir != nil {
		defer dir.Close()
	}
	if !op.req.Whole {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// By entries, so that a capture need not wait for a whole tree.
	if err := op.empty(dir, name); err != nil {
		return err
	}
	return op.step(func() error { return dir.RemoveAll(name) })
}

// empty removes what is in the directory name, if it is one.
func (op *operation) empty(parent *os.Root, name string) error {
	var dir *os.Root
	err := op.step(func() error {
		info, err := parent.Lstat(name)
		if err != nil || !info.IsDir() {
			return ignoreMissing(err)
		}
		dir, err = parent.OpenRoot(name)
		return err
	})
	if err != nil || dir == nil {
		return err
	}
	defer dir.Close()
	for {
		var names []string
		err := op.step(func() error {
			// Opened anew: the place in a directory that changes means nothing.
			f, err := dir.Open(".")
			if err != nil {
				return err
			}
			defer f.Close()
			names, err = f.Readdirnames(batch)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		})
		if err != nil || len(names) == 0 {
			return err
		}
		for _, n := range names {
			if err := op.step(func() error { return dir.RemoveAll(n) }); err != nil {
				return &entryError{n, err}
			}
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mkdir makes a directory; with Whole also those above it, and it may exist.
func (op *operation) mkdir() error {
	return op.step(func() error {
		if !op.req.Whole {
			return op.makeDir(op.req.Path)
		}
		if op.req.Path != "/" {
			if err := op.makeAll(op.req.Path); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		dir, err := op.dir(op.req.Path) // what exists may be a file
		if err != nil {
			return err
		}
		return dir.Close()
	})
}

func (op *operation) makeAll(p string) error {
	err := op.makeDir(p)
	above := path.Dir(p)
	if !errors.Is(err, fs.ErrNotExist) || above == "/" {
		return err
	}
	if err := op.makeAll(above); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return op.makeDir(p)
}

func (op *operation) makeDir(p string) error {
	if p == "/" {
		return protocol.Errorf(protocol.CodeInvalidArgument, "mkdir of the root directory is not possible")
	}
	dir, err := op.dir(path.Dir(p))
	if err != nil {
		return err
	}
	defer dir.Close()
	name := path.Base(p)
	if err := dir.Mkdir(name, 0o700); err != nil {
		return err
	}
	if err := dir.Lchown(name, op.req.UID, op.req.GID); err != nil {
		return err
	}
	mode := op.req.Mode & 0o7777
	if mode == 0 {
		mode = 0o755
	}
	return chmod(dir, name, mode)
}

// chmod sets all twelve bits of a file that is no symbolic link.
func chmod(dir *os.Root, name string, mode uint32) error {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return dir.Chmod(name, m)
}
