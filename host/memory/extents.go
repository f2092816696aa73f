package memory

import (
	"errors"
	"fmt"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// Extent is a part of a file that holds data; the rest is holes, which read
// as zeros.
type Extent struct{ Offset, Length int64 }

func (e Extent) end() int64 { return e.Offset + e.Length }

// dataExtents lists the parts of f that are not holes, whole pages, ascending.
func dataExtents(f *os.File, size int64) ([]Extent, error) {
	var out []Extent
	fd := int(f.Fd())
	for at := int64(0); at < size; {
		start, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("find data of %s: %w", f.Name(), err)
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return nil, fmt.Errorf("find holes of %s: %w", f.Name(), err)
		}
		start, end = start&^(pageSize-1), min((end+pageSize-1)&^(pageSize-1), size)
		if n := len(out); n > 0 && out[n-1].end() >= start {
			out[n-1].Length = end - out[n-1].Offset
		} else {
			out = append(out, Extent{start, end - start})
		}
		at = end
	}
	return out, nil
}

func extentBytes(list []Extent) (n int64) {
	for _, e := range list {
		n += e.Length
	}
	return n
}

// overlaps tells whether any of the sorted extents touches [off, off+length).
func overlaps(list []Extent, off, length int64) bool {
	i := sort.Search(len(list), func(i int) bool { return list[i].end() > off })
	return i < len(list) && list[i].Offset < off+length
}
