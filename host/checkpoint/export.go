package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"

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
	m := c.manifest
	m.Files.Frames = nil // a host may store it as it likes
	manifest, err := m.Encode()
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
	if _, err := c.scanState(ctx, out.To(exportfile.State)); err != nil {
		return err
	}
	pages := bufio.NewWriterSize(out.To(exportfile.Pages), exportfile.MaxContent) // runs may be short
	if _, err := c.scanPages(ctx, pages); err != nil {
		return err
	}
	if err := pages.Flush(); err != nil {
		return err
	}
	return out.Close()
}

// exportRAM writes the parts of the base that are not zeros.
func (c *content) exportRAM(ctx context.Context, out *exportfile.Writer) error {
	want := c.base.RAM
	sum := newRAMSum(want.blockSize())
	err := eachChunk(ctx, c.ram, want.Size, func(off, n int64, p []byte) error {
		if c.base.Durable {
			sum.add(n, p)
		}
		if p == nil || bytes.Equal(p, zeros[:n]) {
			return nil
		}
		return out.Write(exportfile.RAM, off, p)
	})
	if err == nil && c.base.Durable {
		err = want.compare(sum.done())
	}
	if err != nil {
		return unusable(baseName(c.base.ID), nameRAM, err)
	}
	return nil
}
