package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Names of the files of one entry, and of a manifest that is being replaced.
const (
	nameState       = "state"
	namePages       = "pages"
	nameRAM         = "ram"
	nameManifest    = "manifest"
	nameManifestNew = "manifest.new"
)

const (
	dirMode  = 0o700
	fileMode = 0o400 // what is published is never written again
)

// chunk is how much is read at once.
const chunk = 1 << 20

// buffers are shared, since a pages file is read run by run.
var buffers = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// openRegular opens a file for reading; anything but a regular file is an
// error, since a VMM with its own uid may have written the directory.
func openRegular(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func regularSize(path string) (int64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	return info.Size(), nil
}

func wantSize(path string, want int64) error {
	got, err := regularSize(path)
	if err != nil {
		return err
	}
	if got != want {
		return damagedAt(min(got, want), "it has %d bytes, want %d", got, want)
	}
	return nil
}

// copyContext is io.Copy that ends with ctx. What cannot be read is damage at
// an offset of src.
func copyContext(ctx context.Context, dst io.Writer, src io.Reader) (int64, error) {
	pooled := buffers.Get().(*[]byte)
	defer buffers.Put(pooled)
	buf := *pooled
	var n int64
	for {
		if err := context.Cause(ctx); err != nil {
			return n, err
		}
		k, err := src.Read(buf)
		if _, werr := dst.Write(buf[:k]); werr != nil {
			return n, werr
		}
		n += int64(k)
		if err == io.EOF {
			return n, nil
		}
		if _, ok := errors.AsType[*protocol.Error](err); err != nil && !ok {
			err = damagedAt(n, "%v", err)
		}
		if err != nil {
			return n, err
		}
	}
}

// writeFile makes or replaces a file; nothing is fsynced.
func writeFile(label, path string, data []byte) error {
	if err := fault.Point(label); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// syncPath fsyncs a file or a directory.
func syncPath(label, path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if err = fault.Point(label); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func rename(label, from, to string) error {
	if err := fault.Point(label); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
