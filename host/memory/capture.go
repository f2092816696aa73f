package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
)

var zeroPage [pageSize]byte

// Capture copies what a paused process has written over the base to w and
// returns the runs: together a Delta. Pages that are zero and lie in a hole of
// the base are left out, since the base says the same.
//
// w gets writes of up to 1 MiB. A full disk is CodeDiskFull. ctx is looked at
// between them.
func Capture(ctx context.Context, pid int, b *Base, w io.Writer) ([]Run, error) {
	ranges, err := Scan(pid, b)
	if err != nil {
		return nil, err
	}
	return CaptureRanges(ctx, pid, b, ranges, w)
}

// CaptureRanges is Capture of ranges that Scan found while the process was
// already paused.
func CaptureRanges(ctx context.Context, pid int, b *Base, ranges []Range, w io.Writer) ([]Run, error) {
	p := startPipe(ctx, func(p *pipe) error { return readRanges(p, pid, b, ranges) })
	var runs []Run
	err := p.drain(func(batch *batch) error {
		runs = append(runs, batch.runs...)
		if batch.used == 0 {
			return nil
		}
		err := fault.Point("memory.capture.write")
		if err == nil {
			_, err = w.Write(batch.data[:batch.used])
		}
		if err != nil {
			return diskError("write delta", err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("capture memory of process %d: %w", pid, err)
	}
	return runs, nil
}

// readRanges fills batches with the content of the ranges.
func readRanges(p *pipe, pid int, b *Base, ranges []Range) error {
	pieces := make([]Range, 0, maxBatchRuns)
	ranges = slices.Clone(ranges) // take changes it
	for len(ranges) > 0 {
		batch := p.empty()
		if batch == nil {
			return nil
		}
		pieces, ranges = take(pieces[:0], ranges, int64(len(batch.data)))
		if err := readProcess(pid, batch.data, pieces); err != nil {
			return err
		}
		digest(batch, b.extents, pieces)
		if !p.send(batch) {
			return nil
		}
	}
	return nil
}

// take moves ranges of at most size bytes, cutting the last, to pieces.
func take(pieces, ranges []Range, size int64) (taken, rest []Range) {
	for size > 0 && len(ranges) > 0 && len(pieces) < maxBatchRuns {
		r := ranges[0]
		if r.Length <= size {
			ranges = ranges[1:]
		} else {
			r.Length = size
			ranges[0].Offset += size
			ranges[0].Length -= size
			ranges[0].Addr += uint64(size)
		}
		pieces, size = append(pieces, r), size-r.Length
	}
	return pieces, ranges
}

// readProcess copies the pieces into buf, one after the other.
func readProcess(pid int, buf []byte, pieces []Range) error {
	return moveProcess("read", unix.ProcessVMReadv, pid, buf, pieces)
}

type moveFunc func(pid int, local []unix.Iovec, remote []unix.RemoteIovec, flags uint) (int, error)

func moveProcess(verb string, move moveFunc, pid int, buf []byte, pieces []Range) error {
	remote := make([]unix.RemoteIovec, 0, len(pieces))
	total := 0
	for _, r := range pieces {
		remote = append(remote, unix.RemoteIovec{Base: uintptr(r.Addr), Len: int(r.Length)})
		total += int(r.Length)
	}
	// One call does it; a short one is followed by one that says why.
	for at := 0; at < total; {
		local := []unix.Iovec{{Base: &buf[at]}}
		local[0].SetLen(total - at)
		n, err := move(pid, local, remote, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("%s memory of process %d at %#x: %w", verb, pid, remote[0].Base, processError(pid, err))
		}
		at += n
		remote = advance(remote, n)
	}
	return nil
}

func advance(v []unix.RemoteIovec, n int) []unix.RemoteIovec {
	for n > 0 && n >= v[0].Len {
		n -= v[0].Len
		v = v[1:]
	}
	if n > 0 {
		v[0].Base += uintptr(n)
		v[0].Len -= n
	}
	return v
}

// digest turns the raw pieces in batch.data into runs: it finds zero pages,
// closes the gaps that they leave and computes checksums.
func digest(batch *batch, data []Extent, pieces []Range) {
	at, used := 0, 0
	runs := batch.runs[:0]
	for _, piece := range pieces {
		for off := int64(0); off < piece.Length; {
			raw := batch.data[at : at+int(piece.Length-off)]
			n, zero := sameKind(raw)
			start := piece.Offset + off
			off, at = off+int64(n), at+n
			if zero {
				if overlaps(data, start, int64(n)) {
					runs = appendZero(runs, start, int64(n))
				}
				continue
			}
			if used != at-n {
				copy(batch.data[used:], raw[:n])
			}
			runs = append(runs, Run{Offset: start, Length: int64(n), CRC: crc32.Checksum(batch.data[used:used+n], castagnoli)})
			used += n
		}
	}
	batch.used, batch.runs = used, runs
}

// sameKind is the length of the pages at the start of raw that are all zero,
// or all not.
func sameKind(raw []byte) (n int, zero bool) {
	zero = bytes.Equal(raw[:pageSize], zeroPage[:])
	for n = pageSize; n < len(raw) && bytes.Equal(raw[n:n+pageSize], zeroPage[:]) == zero; n += pageSize {
	}
	return n, zero
}

func appendZero(runs []Run, off, length int64) []Run {
	if n := len(runs); n > 0 && runs[n-1].Zero && runs[n-1].Offset+runs[n-1].Length == off {
		runs[n-1].Length += length
		return runs
	}
	return append(runs, Run{Offset: off, Length: length, Zero: true})
}

// CreateDelta captures into a new file at path and returns the delta. The file
// is removed when that fails.
func CreateDelta(ctx context.Context, pid int, b *Base, path string) (*Delta, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, diskError("create delta", err)
	}
	runs, err := Capture(ctx, pid, b, f)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = diskError("write delta", cerr)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &Delta{Path: path, Runs: runs}, nil
}
