package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/ratoon-project/ratoon/protocol"
)

// maxRun is the longest run, so that one buffer holds it.
const maxRun = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Run is a piece of guest memory, whole pages, that replaces the same piece of
// the base.
type Run struct {
	// Offset in the base, and length, in bytes.
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
	// Zero: the piece is all zeros and has no bytes in the delta's file.
	Zero bool `json:"zero,omitempty"`
	// CRC is the CRC-32C of the piece; 0 for a zero run.
	CRC uint32 `json:"crc,omitempty"`
}

// Delta is what one machine wrote since its base.
type Delta struct {
	// Path names a file that holds the runs that are not zero, one after the
	// other and nothing else.
	Path string
	// Open, if not nil, reads these bytes from elsewhere; Path then only names
	// them in errors.
	Open func() (io.ReadCloser, error)
	// Runs are sorted by offset and do not overlap.
	Runs []Run
}

// Bytes is the size of the delta's file.
func (d *Delta) Bytes() (n int64) {
	for _, r := range d.Runs {
		if !r.Zero {
			n += r.Length
		}
	}
	return n
}

// check refuses run tables that cannot be of a base of that size.
func (d *Delta) check(size int64) error {
	end := int64(0)
	for _, r := range d.Runs {
		if r.Offset < end || r.Length <= 0 || r.Length > size-r.Offset || r.Offset%pageSize != 0 || r.Length%pageSize != 0 ||
			!r.Zero && r.Length > maxRun {
			return lost("%s: run of %#x bytes at %#x is not possible in a base of %#x bytes", d.Path, r.Length, r.Offset, size)
		}
		end = r.Offset + r.Length
	}
	return nil
}

// each reads the runs in order, checks them and hands them to do in batches,
// which are do's until it returns. Reading and checking overlap with do.
func (d *Delta) each(ctx context.Context, do func(*batch) error) error {
	f, err := d.open()
	if err != nil {
		return err
	}
	defer f.Close()
	p := startPipe(ctx, func(p *pipe) error {
		for batch := p.empty(); batch != nil; batch = p.empty() {
			more, err := d.fill(f, batch, p)
			if err != nil {
				return err
			}
			if !p.send(batch) || !more {
				return nil
			}
		}
		return nil
	})
	return p.drain(do)
}

func (d *Delta) open() (io.ReadCloser, error) {
	if d.Open != nil {
		f, err := d.Open()
		if err != nil {
			return nil, fmt.Errorf("open delta: %w", err)
		}
		return f, nil
	}
	f, err := os.Open(d.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, lost("delta %s is missing", d.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("open delta: %w", err)
	}
	st, err := f.Stat()
	if err == nil && st.Size() != d.Bytes() {
		return nil, errors.Join(lost("delta %s has %d bytes, not %d", d.Path, st.Size(), d.Bytes()), f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open delta: %w", err), f.Close())
	}
	return f, nil
}

// fill reads the next runs that fit into one batch.
func (d *Delta) fill(f io.Reader, b *batch, p *pipe) (more bool, err error) {
	for p.next < len(d.Runs) && len(b.runs) < maxBatchRuns {
		r := d.Runs[p.next]
		if !r.Zero {
			if b.used+int(r.Length) > len(b.data) {
				break
			}
			b.used += int(r.Length)
		}
		b.runs = append(b.runs, r)
		p.next++
	}
	if _, err := io.ReadFull(f, b.data[:b.used]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, lost("delta %s is cut short", d.Path)
		}
		return false, fmt.Errorf("read delta: %w", err)
	}
	at := 0
	for _, r := range b.runs {
		if r.Zero {
			continue
		}
		if got := crc32.Checksum(b.data[at:at+int(r.Length)], castagnoli); got != r.CRC {
			return false, lost("delta %s is damaged: run of %#x bytes at %#x has checksum %08x, not %08x", d.Path, r.Length, r.Offset, got, r.CRC)
		}
		at += int(r.Length)
	}
	return p.next < len(d.Runs), nil
}

// Verify reads the whole delta and checks it against a base of that size.
func (d *Delta) Verify(ctx context.Context, size int64) error {
	if err := d.check(size); err != nil {
		return err
	}
	return d.each(ctx, func(*batch) error { return nil })
}

// The run table as a file: magic, count, 24 bytes a run, CRC-32C of all before;
// little-endian.
const (
	runsMagic = "ratoonR1"
	runSize   = 24
	flagZero  = 1
)

// EncodeRuns writes a run table in its compact form, of 24 bytes a run.
func EncodeRuns(runs []Run) []byte {
	out := make([]byte, 0, len(runsMagic)+8+len(runs)*runSize+4)
	out = append(out, runsMagic...)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(runs)))
	for _, r := range runs {
		var flags uint32
		if r.Zero {
			flags = flagZero
		}
		out = binary.LittleEndian.AppendUint64(out, uint64(r.Offset))
		out = binary.LittleEndian.AppendUint64(out, uint64(r.Length))
		out = binary.LittleEndian.AppendUint32(out, flags)
		out = binary.LittleEndian.AppendUint32(out, r.CRC)
	}
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// DecodeRuns is the inverse of EncodeRuns; CodeCheckpointLost for bytes that it
// did not write. Whether the runs fit a base is checked when they are used.
func DecodeRuns(b []byte) ([]Run, error) {
	const head = len(runsMagic) + 8
	if len(b) < head+4 || !bytes.HasPrefix(b, []byte(runsMagic)) {
		return nil, lost("run table of %d bytes has no header", len(b))
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, lost("run table is damaged")
	}
	n := binary.LittleEndian.Uint64(body[len(runsMagic):])
	body = body[head:]
	if n != uint64(len(body)/runSize) || len(body)%runSize != 0 {
		return nil, lost("run table holds %d bytes for %d runs", len(body), n)
	}
	runs := make([]Run, n)
	for i := range runs {
		p := body[i*runSize:]
		flags := binary.LittleEndian.Uint32(p[16:])
		if flags&^flagZero != 0 {
			return nil, protocol.Errorf(protocol.CodeCheckpointRefused, "run table has flags %#x of a newer release", flags)
		}
		runs[i] = Run{
			Offset: int64(binary.LittleEndian.Uint64(p)), Length: int64(binary.LittleEndian.Uint64(p[8:])),
			Zero: flags&flagZero != 0, CRC: binary.LittleEndian.Uint32(p[20:]),
		}
	}
	return runs, nil
}
