package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Range is memory of a process that differs from the base, or may.
type Range struct {
	// Offset and Length say which part of the base it replaces, in whole pages.
	Offset, Length int64
	// Addr is where the process has it.
	Addr uint64
}

// Scan lists the pages of the base that the process has written since it
// mapped it, sorted by offset. It may run while the process does, as an
// estimate.
func Scan(pid int, b *Base) ([]Range, error) {
	regions, err := Regions(pid, b)
	if err != nil {
		return nil, err
	}
	ranges, err := scanWith(pid, regions, scanIoctl)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) { // before Linux 6.7
		ranges, err = scanWith(pid, regions, scanPagemap)
	}
	if err != nil {
		return nil, fmt.Errorf("scan pages of process %d: %w", pid, err)
	}
	return ranges, nil
}

// Bytes is the length of all ranges.
func Bytes(ranges []Range) (n int64) {
	for _, r := range ranges {
		n += r.Length
	}
	return n
}

type scanner func(pagemap *os.File, start, end uint64, found func(start, end uint64)) error

func scanWith(pid int, regions []Region, scan scanner) ([]Range, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return nil, processError(pid, err)
	}
	defer f.Close()
	var out []Range
	for _, r := range regions {
		err := scan(f, r.Addr, r.Addr+uint64(r.Length), func(start, end uint64) {
			off, length := r.Offset+int64(start-r.Addr), int64(end-start)
			if n := len(out); n > 0 && out[n-1].Offset+out[n-1].Length == off && out[n-1].Addr+uint64(out[n-1].Length) == start {
				out[n-1].Length += length
				return
			}
			out = append(out, Range{Offset: off, Length: length, Addr: start})
		})
		if err != nil {
			return nil, processError(pid, err)
		}
	}
	return out, nil
}

// Bits of an entry of /proc/PID/pagemap, from the kernel's
// Documentation/admin-guide/mm/pagemap.rst.
const (
	pagemapFile    = 1 << 61 // a page of the file, or shared
	pagemapSwapped = 1 << 62
	pagemapPresent = 1 << 63
)

// scanPagemap reads one entry of 8 bytes a page. It works on every kernel.
func scanPagemap(pagemap *os.File, start, end uint64, found func(start, end uint64)) error {
	buf := make([]byte, 64<<10)
	run := uint64(0) // start of the current run, 0 outside of one
	for at := start; at < end; {
		n := min(uint64(len(buf))/8, (end-at)/pageSize)
		if _, err := io.ReadFull(io.NewSectionReader(pagemap, int64(at/pageSize*8), int64(n*8)), buf[:n*8]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return os.ErrProcessDone // its address space is gone
			}
			return err
		}
		for i := range n {
			e := binary.NativeEndian.Uint64(buf[i*8:])
			dirty := e&pagemapSwapped != 0 || e&pagemapPresent != 0 && e&pagemapFile == 0
			switch addr := at + i*pageSize; {
			case dirty && run == 0:
				run = addr
			case !dirty && run != 0:
				found(run, addr)
				run = 0
			}
		}
		at += n * pageSize
	}
	if run != 0 {
		found(run, end)
	}
	return nil
}

// From include/uapi/linux/fs.h, since Linux 6.7.
const (
	ioctlPagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg)
	pageIsFile       = 1 << 2
	pageIsPresent    = 1 << 3
	pageIsSwapped    = 1 << 4
)

type pageRegion struct{ start, end, categories uint64 }

type pmScanArg struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, returned                         uint64
}

// scanIoctl asks for runs of pages that are present or swapped, and not of the
// file. ENOTTY on kernels without it.
func scanIoctl(pagemap *os.File, start, end uint64, found func(start, end uint64)) error {
	vec := make([]pageRegion, 2048)
	var pin runtime.Pinner // the kernel gets its address as a number
	pin.Pin(&vec[0])
	defer pin.Unpin()
	for start < end {
		arg := pmScanArg{
			start: start, end: end, vecLen: uint64(len(vec)),
			vec:      uint64(uintptr(unsafe.Pointer(&vec[0]))),
			inverted: pageIsFile, mask: pageIsFile, anyOf: pageIsPresent | pageIsSwapped,
		}
		arg.size = uint64(unsafe.Sizeof(arg))
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, pagemap.Fd(), ioctlPagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		for _, r := range vec[:n] {
			found(r.start, r.end)
		}
		if n < uintptr(len(vec)) {
			return nil
		}
		// Not from walk_end: where the kernel needed several rounds, it may be
		// that of an earlier one, and what follows would be found twice.
		start = vec[n-1].end
	}
	return nil
}

func addressOf(p []byte) uintptr { return uintptr(unsafe.Pointer(&p[0])) }
