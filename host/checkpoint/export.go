package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint/exportfile"
	"github.com/ratoon-project/ratoon/protocol"
)

// Export writes a checkpoint with its base to w, as a file that ImportFile
// reads. It is held to its checksums while it is read: when one is wrong the
// file has no end, and the error is CodeCheckpointLost. A template's device
// state is left out, since only machines that boot from the template need it.
func (s *Store) Export(ctx context.Context, id protocol.CheckpointID, w io.Writer) (err error) {
	c, err := s.content(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	to := &sink{w: w}
	if err := c.export(ctx, to); err != nil {
		return typed(protocol.CodeInternal, "export "+checkpointName(id), cmp.Or(to.err, err))
	}
	return nil
}

// sink tells failures to write from damage of what is read.
type sink struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (s *sink) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	s.err = cmp.Or(s.err, err)
	return n, err
}

func (c *content) export(ctx context.Context, w io.Writer) error {
	out := exportfile.NewWriter(w)
	manifest, err := c.manifest.Encode()
	if err != nil {
		return err
	}
	b := c.base
	b.From, b.State, b.Meta = Origin{}, nil, nil
	base, err := seal(kindBase, b)
	if err != nil {
		return err
	}
	err = errors.Join(out.Write(exportfile.Manifest, 0, manifest), out.Write(exportfile.Base, 0, base))
	if err != nil {
		return err
	}
	if err := c.exportRAM(ctx, out); err != nil {
		return err
	}
	if err := c.exportState(ctx, out.To(exportfile.State)); err != nil {
		return unusable(checkpointName(c.manifest.ID), nameState, err)
	}
	if err := c.exportPages(ctx, out.To(exportfile.Pages)); err != nil {
		return unusable(checkpointName(c.manifest.ID), namePages, err)
	}
	return out.Close()
}

// exportRAM writes the parts of the base that are not zeros.
func (c *content) exportRAM(ctx context.Context, out *exportfile.Writer) error {
	var sum hash.Hash
	if c.base.Durable {
		sum = sha256.New()
	}
	err := eachData(ctx, c.ram, c.base.RAM.Size, sum, func(off int64, p []byte) error { return out.Write(exportfile.RAM, off, p) })
	if err != nil {
		return err
	}
	if sum != nil && hexSum(sum) != c.base.RAM.SHA256 {
		return unusable(baseName(c.base.ID), nameRAM, fmt.Errorf("%w: sha256 %s, want %s", errDamaged, hexSum(sum), c.base.RAM.SHA256))
	}
	return nil
}

var zeros [chunk]byte

// eachData calls do with the pieces of a file that are not all zeros, in order.
// sum, if not nil, gets everything.
func eachData(ctx context.Context, f *os.File, size int64, sum hash.Hash, do func(off int64, p []byte) error) error {
	buf := make([]byte, chunk)
	for off := int64(0); off < size; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(chunk, size-off)
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= off+n {
			if sum != nil {
				sum.Write(zeros[:n])
			}
			off += n
			continue
		}
		if _, err := f.ReadAt(buf[:n], off); err != nil {
			return err
		}
		if sum != nil {
			sum.Write(buf[:n])
		}
		if !bytes.Equal(buf[:n], zeros[:n]) {
			if err := do(off, buf[:n]); err != nil {
				return err
			}
		}
		off += n
	}
	return nil
}

func (c *content) exportState(ctx context.Context, w io.Writer) error {
	want := c.manifest.Files.State
	strong, sum := sha256.New(), crc32.New(castagnoli)
	n, err := copyContext(ctx, io.MultiWriter(w, strong, sum), c.state)
	if err != nil {
		return err
	}
	return want.compare(n, sum.Sum32(), strong)
}

// compare holds a file that was read whole to its checksums.
func (f File) compare(n int64, sum uint32, strong hash.Hash) error {
	if n != f.Size || sum != f.CRC32C {
		return fmt.Errorf("%w: %d bytes with crc32c %08x, want %d with %08x", errDamaged, n, sum, f.Size, f.CRC32C)
	}
	if f.SHA256 != "" && f.SHA256 != hexSum(strong) {
		return fmt.Errorf("%w: sha256 %s, want %s", errDamaged, hexSum(strong), f.SHA256)
	}
	return nil
}

func (c *content) exportPages(ctx context.Context, w io.Writer) error {
	want := c.manifest.Files.Pages
	strong := sha256.New()
	buffered := bufio.NewWriterSize(w, exportfile.MaxContent) // runs may be short
	if err := scanRuns(ctx, c.pages, want.Runs, io.MultiWriter(strong, buffered)); err != nil {
		return err
	}
	if want.SHA256 != "" && want.SHA256 != hexSum(strong) {
		return fmt.Errorf("%w: sha256 %s, want %s", errDamaged, hexSum(strong), want.SHA256)
	}
	return buffered.Flush()
}
