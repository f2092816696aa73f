package image

import (
	"fmt"
	"io"
)

// File types of cpio modes (include/uapi/linux/stat.h).
const (
	modeDir  = 0o040000
	modeChar = 0o020000
	modeFile = 0o100000
	modeLink = 0o120000
)

// cpioWriter writes the "newc" archive that the kernel unpacks as initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst). Owner is root
// and the time zero, so that equal input gives equal bytes.
type cpioWriter struct {
	w   io.Writer
	ino int
	pos int64
}

type cpioEntry struct {
	name         string // without a leading slash
	mode         uint32 // type and permissions
	major, minor uint32 // of a device node
	data         []byte
}

func (c *cpioWriter) add(e cpioEntry) error {
	c.ino++
	links := 1
	if e.mode&modeDir == modeDir {
		links = 2
	}
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, e.mode, 0, 0, links, 0, len(e.data), 0, 0, e.major, e.minor, len(e.name)+1, 0, e.name)
	for _, part := range [][]byte{[]byte(head), e.data} {
		if err := c.padded(part); err != nil {
			return fmt.Errorf("write %s to the initramfs: %w", e.name, err)
		}
	}
	return nil
}

// padded writes b and fills up to a multiple of four bytes.
func (c *cpioWriter) padded(b []byte) error {
	c.pos += int64(len(b))
	if _, err := c.w.Write(b); err != nil {
		return err
	}
	pad := make([]byte, -c.pos&3)
	c.pos += int64(len(pad))
	_, err := c.w.Write(pad)
	return err
}

// close ends the archive. The kernel accepts it without padding to a block.
func (c *cpioWriter) close() error { return c.add(cpioEntry{name: "TRAILER!!!"}) }
