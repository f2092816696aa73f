package memory

import (
	"context"
	"fmt"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

var zeroRun [maxRun]byte

// Apply writes the delta over a process's private mapping of the base. The
// process must not have loaded its device state: devices read guest memory
// while they load. The delta is verified while it is copied; after an error
// the process holds a part of it and must be killed.
func (d *Delta) Apply(ctx context.Context, pid int, b *Base) error {
	if err := d.check(b.size); err != nil {
		return err
	}
	regions, err := Regions(pid, b)
	if err != nil {
		return err
	}
	if err := fault.Point("memory.apply"); err != nil {
		return err
	}
	var content, zeros []Range
	return d.each(ctx, func(b *batch) error {
		content, zeros = content[:0], zeros[:0]
		for _, r := range b.runs {
			if r.Zero {
				zeros = place(zeros, regions, r.Offset, r.Length)
			} else {
				content = place(content, regions, r.Offset, r.Length)
			}
		}
		if err := writeProcess(pid, b.data[:b.used], content); err != nil {
			return err
		}
		for _, r := range zeros {
			if err := writeProcess(pid, zeroRun[:r.Length], []Range{r}); err != nil {
				return err
			}
		}
		return nil
	})
}

// place appends where in the process a piece of the base is: in one part, or
// more where it crosses regions or is longer than maxRun. The regions cover
// the base and check has held the piece to it.
func place(out []Range, regions []Region, off, length int64) []Range {
	i := sort.Search(len(regions), func(i int) bool { return regions[i].Offset+regions[i].Length > off })
	for ; length > 0; i++ {
		r := regions[i]
		for end := r.Offset + r.Length; length > 0 && off < end; {
			n := min(length, end-off, maxRun)
			out = append(out, Range{Offset: off, Length: n, Addr: r.Addr + uint64(off-r.Offset)})
			off, length = off+n, length-n
		}
	}
	return out
}

// writeProcess writes buf to the pieces, one after the other.
func writeProcess(pid int, buf []byte, pieces []Range) error {
	for len(pieces) > 0 {
		some := pieces[:min(len(pieces), maxBatchRuns)]
		n := Bytes(some)
		if err := moveProcess("write", unix.ProcessVMWritev, pid, buf[:n], some); err != nil {
			return fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeUnavailable, "apply delta"), err)
		}
		buf, pieces = buf[n:], pieces[len(some):]
	}
	return nil
}
