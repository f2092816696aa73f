package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// pageSize is that of the guests and of x86 and most arm64 hosts; OpenBase
// refuses hosts with another one.
const pageSize = 4096

// Base is a guest-RAM image that is never written again. Machines map it
// privately, either its file or a sealed copy of it in memory.
type Base struct {
	id      protocol.BaseID
	path    string
	size    int64
	extents []Extent

	making sync.Mutex // held while the copy is made; before mu

	mu    sync.Mutex
	file  *os.File // nil for a base that is in memory only, and when closed
	memfd *os.File // nil until wanted, and when closed
	names []Name
	// foreign are names of copies that earlier processes made.
	foreign []Name
	done    bool
}

// OpenBase opens the base in the file at path, whose size is the guest's RAM.
func OpenBase(id protocol.BaseID, path string) (*Base, error) {
	if os.Getpagesize() != pageSize {
		return nil, protocol.Errorf(protocol.CodeNotSupported, "host pages of %d bytes; only %d is supported", os.Getpagesize(), pageSize)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open base %s: %w", id, err)
	}
	b, err := newBase(id, path, f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open base %s: %w", id, err)
	}
	b.file = f
	return b, nil
}

func newBase(id protocol.BaseID, path string, f *os.File) (*Base, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() == 0 || st.Size()%pageSize != 0 {
		return nil, lost("base %s: %s of %d bytes is not a RAM image", id, st.Mode().Type(), st.Size())
	}
	extents, err := dataExtents(f, st.Size())
	if err != nil {
		return nil, err
	}
	name, err := mappedName(f)
	if err != nil {
		return nil, err
	}
	return &Base{id: id, path: path, size: st.Size(), extents: extents, names: []Name{name}}, nil
}

// ID is the identifier given when the base was opened or made.
func (b *Base) ID() protocol.BaseID { return b.id }

// Path is where the canonical file lies; empty for a base in memory only.
func (b *Base) Path() string { return b.path }

// Size is the guest's RAM in bytes.
func (b *Base) Size() int64 { return b.size }

// DataBytes is how much of the base is not holes.
func (b *Base) DataBytes() int64 { return extentBytes(b.extents) }

// File is the base's file, read-only, for a VMM that opens it read-only. The
// Base owns it. For a base in memory only it is the sealed copy.
func (b *Base) File() (*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return nil, fmt.Errorf("base %s: %w", b.id, os.ErrClosed)
	}
	if b.file == nil {
		return b.memfd, nil
	}
	return b.file, nil
}

// Memfd is a copy of the base in memory, sealed against every change, for a
// VMM that insists on opening its RAM read-write. It is made on first use,
// shared by all callers and owned by the Base.
func (b *Base) Memfd(ctx context.Context) (*os.File, error) {
	b.making.Lock()
	defer b.making.Unlock()
	b.mu.Lock()
	file, memfd, done := b.file, b.memfd, b.done
	b.mu.Unlock()
	switch {
	case done:
		return nil, fmt.Errorf("base %s: %w", b.id, os.ErrClosed)
	case memfd != nil:
		return memfd, nil
	}
	memfd, err := newMemfd(string(b.id), b.size)
	if err != nil {
		return nil, err
	}
	err = copyExtents(ctx, memfd, file, b.extents)
	if err == nil {
		err = seal(memfd)
	}
	var name Name
	if err == nil {
		name, err = mappedName(memfd)
	}
	if err != nil {
		memfd.Close()
		return nil, fmt.Errorf("copy base %s into memory: %w", b.id, err)
	}
	// The copy serves from here on; the file's cached pages would be a second.
	unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		memfd.Close()
		return nil, fmt.Errorf("base %s: %w", b.id, os.ErrClosed)
	}
	b.memfd, b.names = memfd, append(b.names, name)
	return memfd, nil
}

// Close releases the file and the copy; machines that map them keep them
// mapped. Idempotent.
func (b *Base) Close() error {
	b.making.Lock() // no copy is being read from the file
	defer b.making.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	var errs []error
	for _, f := range []*os.File{b.file, b.memfd} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	b.file, b.memfd = nil, nil
	return errors.Join(errs...)
}

func (b *Base) mappedNames() []Name {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Concat(b.names, b.foreign)
}

// source is the file that is cheapest to read the base's data from.
func (b *Base) source() (*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.done:
		return nil, fmt.Errorf("base %s: %w", b.id, os.ErrClosed)
	case b.memfd != nil:
		return b.memfd, nil
	}
	return b.file, nil
}

// newMemfd makes an empty sealable memory file of that size. Any user may open
// it through /proc/self/fd, so it must not be handed on before it is sealed.
func newMemfd(name string, size int64) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd:"+name)
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("size memory file: %w", err)
	}
	return f, nil
}

func seal(f *os.File) error {
	const all = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, all); err != nil {
		return fmt.Errorf("seal memory file: %w", err)
	}
	return nil
}

// SealedCopy copies a whole file into a sealed memory file, for a process of
// another user that must read it but has no permission on its path.
func SealedCopy(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	memfd, err := newMemfd("copy", 0)
	if err != nil {
		return nil, err
	}
	if _, err := memfd.ReadFrom(f); err != nil {
		memfd.Close()
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	if err := seal(memfd); err != nil {
		memfd.Close()
		return nil, err
	}
	return memfd, nil
}
