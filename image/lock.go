package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lock takes the file lock of a recipe, waiting for another builder.
func (c *Cache) lock(ctx context.Context, kind, key string) (unlock func(), err error) {
	delay := time.Millisecond
	for {
		f, err := c.tryLock(name(kind, key))
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, explain("lock image cache", c.opt.Dir, err)
		}
		c.opt.Progress("waiting for another process that builds the "+kind, 0, 0)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(delay):
		}
		delay = min(2*delay, 50*time.Millisecond)
	}
}

// tryLock opens a file description of its own, so that the lock also holds
// between goroutines; closing it, or the process's end, gives it back.
func (c *Cache) tryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(c.sub("locks", name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Sweep removes what builders left behind that were killed.
func (c *Cache) Sweep() { c.sweep("") }

// sweep removes the temporary directories of one recipe, whose lock the caller
// holds, or those of all recipes that nobody is building.
func (c *Cache) sweep(held string) {
	list, err := os.ReadDir(c.sub("tmp"))
	if err != nil {
		return // no cache yet
	}
	for _, d := range list {
		owner := d.Name()
		if i := strings.LastIndexByte(owner, '-'); i >= 0 {
			owner = owner[:i]
		}
		if held != "" {
			if owner == held {
				c.discard(c.sub("tmp", d.Name()))
			}
			continue
		}
		if f, err := c.tryLock(owner); err == nil {
			c.discard(c.sub("tmp", d.Name()))
			f.Close()
		}
	}
}

// scratchName is a file in a temporary directory that holds the path of a
// scratch directory elsewhere, to be removed with it.
const (
	scratchName   = "scratch"
	scratchPrefix = "ratoon-image-"
)

// discard removes a temporary directory or entry. Another process may do so at
// the same time, so what is gone already is no error.
func (c *Cache) discard(path string) error {
	if b, err := os.ReadFile(filepath.Join(path, scratchName)); err == nil {
		scratch := string(b)
		if strings.HasPrefix(filepath.Base(scratch), scratchPrefix) {
			c.discard(scratch)
		}
	}
	err := os.RemoveAll(path)
	if err == nil {
		return nil
	}
	// A chroot made in a user namespace belongs to subordinate uids, which
	// only such a namespace can remove.
	if tool, lookErr := exec.LookPath("mmdebstrap"); lookErr == nil && os.Geteuid() != 0 {
		if exec.Command(tool, "--unshare-helper", "rm", "-rf", "--one-file-system", path).Run() == nil {
			return nil
		}
	}
	c.log.Warn("cannot remove a directory of the image cache", "path", path, "error", err)
	return err
}
