package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// put writes a file beside its place and renames it there.
func (op *operation) put() (err error) {
	var dir *os.Root
	var name, temp string
	var f *os.File
	err = op.step(func() (err error) {
		if dir, name, err = op.parent(); err != nil {
			return err
		}
		temp = ".ratoon-put-" + rand.Text()
		f, err = dir.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		return err
	})
	if dir != nil {
		defer dir.Close()
	}
	if err != nil {
		return err
	}
	defer func() {
		f.Close() // again, if all went well
		if err == nil {
			return
		}
		// Also at the end of the context: nothing else would ever remove it.
		op.gate.enter(withoutEnd(op.ctx))
		defer op.gate.leave()
		err = errors.Join(err, dir.Remove(temp))
	}()
	if err := op.copyIn(f); err != nil {
		return err
	}
	return op.step(func() error {
		if err := op.finish(f); err != nil {
			return err
		}
		if err := fault.Point("files.put.rename"); err != nil {
			return err
		}
		return dir.Rename(temp, name)
	})
}

// copyIn writes what the host sends.
func (op *operation) copyIn(f *os.File) error {
	for {
		var in protocol.FileFrame
		if err := op.receive(&in); err != nil {
			return err
		}
		err := op.step(func() error {
			if err := fault.Point("files.put.write"); err != nil {
				return err
			}
			_, err := f.Write(in.Data)
			return err
		})
		if err != nil || in.End {
			return err
		}
	}
}

// finish gives a new file its owner and mode, in this order, since a change of
// owner clears the set-id bits.
func (op *operation) finish(f *os.File) error {
	mode := op.req.Mode & 0o7777
	if mode == 0 {
		mode = 0o644
	}
	if err := f.Chown(op.req.UID, op.req.GID); err != nil {
		return err
	}
	if err := unix.Fchmod(int(f.Fd()), mode); err != nil {
		return &fs.PathError{Op: "chmod", Path: op.req.Path, Err: err}
	}
	return f.Close()
}

// get sends a regular file.
func (op *operation) get() error {
	var f *os.File
	err := op.step(func() (err error) {
		// Not blocking, so that a pipe without a writer does not stop us.
		if f, err = op.resolve(op.req.Path, unix.O_RDONLY|unix.O_NONBLOCK); err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = protocol.Errorf(protocol.CodeInvalidArgument, "get %s: it is %s, not a regular file", op.req.Path, kind(info.Mode()))
		}
		return err
	})
	if f != nil {
		defer f.Close()
	}
	if err != nil {
		return err
	}
	_, err = op.copyOut(f)
	return err
}

// copyOut sends what r has, reading in steps.
func (op *operation) copyOut(r io.Reader) (sent int64, err error) {
	buf := make([]byte, piece)
	for {
		var n int
		err := op.step(func() (err error) {
			n, err = r.Read(buf)
			return err
		})
		if n > 0 {
			if _, err := op.Write(buf[:n]); err != nil {
				return sent, err
			}
			sent += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return fmt.Sprintf("of mode %v", m)
}
