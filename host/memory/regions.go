package memory

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// Name is how /proc/PID/maps names a mapped file. It is learned by mapping
// the file rather than from stat, whose device number differs on btrfs and
// overlayfs. While a process maps the file, no other one has its name.
type Name struct {
	Device string `json:"device"`
	Inode  string `json:"inode"`
}

// Region is one mapping of a part of a base in a process.
type Region struct {
	// Addr is where the process has it.
	Addr uint64
	// Offset and Length say which part of the base it is.
	Offset, Length int64
}

// mappedName maps a page of f to see how the kernel names it.
func mappedName(f *os.File) (Name, error) {
	p, err := unix.Mmap(int(f.Fd()), 0, pageSize, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return Name{}, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	defer unix.Munmap(p)
	start := fmt.Sprintf("%x", addressOf(p))
	var name Name
	err = eachMapping(os.Getpid(), func(m mapping) error {
		if strconv.FormatUint(m.start, 16) == start {
			name = m.name
		}
		return nil
	})
	if err == nil && name.Inode == "" {
		err = fmt.Errorf("find the mapping of %s: %w", f.Name(), ErrNotMapped)
	}
	return name, err
}

// NameIn is the name under which a process maps the base.
func NameIn(pid int, b *Base) (Name, error) {
	names, found := b.mappedNames(), Name{}
	err := eachMapping(pid, func(m mapping) error {
		if slices.Contains(names, m.name) {
			found = m.name
		}
		return nil
	})
	if err == nil && found == (Name{}) {
		err = ErrNotMapped
	}
	if err != nil {
		return Name{}, fmt.Errorf("find base %s in process %d: %w", b.id, pid, err)
	}
	return found, nil
}

// Know makes the base known by one more name until it is forgotten: that of
// an earlier process's copy in memory, which only the machines of that process
// still map. Its content is the base's, so what is read is the base's own file.
func (b *Base) Know(n Name) (forget func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.foreign = append(b.foreign, n)
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if i := slices.Index(b.foreign, n); i >= 0 {
			b.foreign = slices.Delete(b.foreign, i, i+1)
		}
	})
}

// Regions finds where a process maps the base, sorted by offset. All of the
// base must be mapped, privately, and once.
func Regions(pid int, b *Base) ([]Region, error) {
	names := b.mappedNames()
	var out []Region
	err := eachMapping(pid, func(m mapping) error {
		if !slices.Contains(names, m.name) {
			return nil
		}
		if !m.private {
			return fmt.Errorf("%w at %#x", ErrShared, m.start)
		}
		length := min(int64(m.end-m.start), b.size-m.offset)
		if length > 0 {
			out = append(out, Region{Addr: m.start, Offset: m.offset, Length: length})
		}
		return nil
	})
	if err == nil {
		slices.SortFunc(out, func(x, y Region) int { return cmp.Compare(x.Offset, y.Offset) })
		err = checkRegions(out, b.size)
	}
	if err != nil {
		return nil, fmt.Errorf("find base %s in process %d: %w", b.id, pid, err)
	}
	return out, nil
}

func checkRegions(sorted []Region, size int64) error {
	at := int64(0)
	for _, r := range sorted {
		switch {
		case r.Offset > at:
			return fmt.Errorf("%w: nothing at offset %#x", ErrNotMapped, at)
		case r.Offset < at:
			return fmt.Errorf("%w at offset %#x", ErrAmbiguous, r.Offset)
		}
		at += r.Length
	}
	if at != size {
		return fmt.Errorf("%w: nothing at offset %#x", ErrNotMapped, at)
	}
	return nil
}

type mapping struct {
	start, end uint64
	offset     int64
	private    bool
	name       Name
}

func eachMapping(pid int, do func(mapping) error) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return processError(pid, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		m, err := parseMapping(lines.Text())
		if err != nil {
			return err
		}
		if err := do(m); err != nil {
			return err
		}
	}
	return processError(pid, lines.Err())
}

// parseMapping reads a line like
// "7f00-7f10 rw-p 00001000 00:01 4321    /memfd:ba (deleted)".
func parseMapping(line string) (m mapping, err error) {
	f := strings.Fields(line)
	if len(f) < 5 || len(f[1]) < 4 {
		return m, fmt.Errorf("mapping %q is not understood", line)
	}
	from, to, _ := strings.Cut(f[0], "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	offset, err3 := strconv.ParseInt(f[2], 16, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		// vsyscall lies in the upper half with an offset of 0, so every
		// number of a genuine line fits.
		return m, fmt.Errorf("mapping %q is not understood: %w", line, err)
	}
	return mapping{start, end, offset, f[1][3] == 'p', Name{f[3], f[4]}}, nil
}

// processError names the usual reason why looking into a process fails.
func processError(pid int, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH):
		return fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeNotSupported, "no permission to read the memory of process %d (needs the same user as its parent, or CAP_SYS_PTRACE)", pid), err)
	}
	return err
}
