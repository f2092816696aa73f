package framefile

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// File is a file of frames that is open for reading.
type File struct {
	f       *os.File
	name    string
	entries []entry
	indexAt int64
}

// decoders are shared: each has its own tables.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(Window), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(err) // of options that are constant
	}
	return d
}}

// Open opens a file and reads its index, which must be that of the name. Frames are
// held to their digests as they are read.
func Open(path, name string) (*File, error) {
	if err := ParseName(name); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	file := &File{f: f, name: name}
	if err := file.readIndex(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return file, nil
}

func (f *File) readIndex() error {
	info, err := f.f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if !info.Mode().IsRegular() || size < int64(len(magic))+entrySize+footerSize {
		return damaged(size, "%d bytes of a %s are no file of frames", size, info.Mode().Type())
	}
	var footer [footerSize]byte
	if _, err := f.f.ReadAt(footer[:], size-footerSize); err != nil {
		return damaged(size-footerSize, "%v", err)
	}
	at := int64(binary.LittleEndian.Uint64(footer[:]))
	length := size - footerSize - at
	if at < int64(len(magic)) || length <= 0 || length%entrySize != 0 || string(footer[8:]) != footMagic {
		return damaged(size-footerSize, "the footer is none")
	}
	end := make([]byte, length+footerSize)
	if _, err := f.f.ReadAt(end, at); err != nil {
		return damaged(at, "%v", err)
	}
	if got := nameOf(end); got != f.name {
		return damaged(at, "the index has sha256 %s", got)
	}
	return f.parse(end[:length], at)
}

// parse reads an index, which is what was written: it has its digest. It is
// held to its own rules all the same, since names may come from outside too.
func (f *File) parse(index []byte, at int64) error {
	f.indexAt = at
	next := int64(len(magic))
	for ; len(index) > 0; index = index[entrySize:] {
		e := parseEntry(index)
		if e.offset != next || e.stored == 0 || e.stored > maxFrame || e.size == 0 || e.size > Window || e.offset+int64(e.stored) > at {
			return damaged(at, "frame %d of %d bytes at %d is not possible", len(f.entries), e.stored, e.offset)
		}
		next += int64(e.stored)
		f.entries = append(f.entries, e)
	}
	if next != at {
		return damaged(next, "%d bytes belong to no frame", at-next)
	}
	return nil
}

// Name is the file's.
func (f *File) Name() string { return f.name }

// Frames is how many frames it has.
func (f *File) Frames() int { return len(f.entries) }

// Window is the window of a frame.
func (f *File) Window(frame int) uint64 { return f.entries[frame].window }

// Stored is the length of a frame in the file, in bytes.
func (f *File) Stored(frame int) int64 { return int64(f.entries[frame].stored) }

// ContentSize is the length of a frame's content, in bytes.
func (f *File) ContentSize(frame int) int64 { return int64(f.entries[frame].size) }

// Offset is where a frame begins in the file.
func (f *File) Offset(frame int) int64 { return f.entries[frame].offset }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// Read holds a frame to its digest and decompresses it, into buf if that is
// large enough.
func (f *File) Read(frame int, buf []byte) ([]byte, error) {
	e := f.entries[frame]
	stored, err := f.raw(frame)
	if err != nil {
		return nil, err
	}
	d := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(d)
	out, err := d.DecodeAll(stored, buf[:0])
	if err != nil || len(out) != int(e.size) {
		return nil, damaged(e.offset, "frame %d does not decompress to %d bytes: %v", frame, e.size, err)
	}
	return out, nil
}

// raw is a frame as it is stored, held to its digest.
func (f *File) raw(frame int) ([]byte, error) {
	e := f.entries[frame]
	b := make([]byte, e.stored)
	if _, err := f.f.ReadAt(b, e.offset); err != nil {
		return nil, damaged(e.offset, "%v", err)
	}
	if sha256.Sum256(b) != e.digest {
		return nil, damaged(e.offset, "frame %d of %d bytes has another sha256", frame, e.stored)
	}
	return b, nil
}

// Verify reads the whole file and holds every byte to its digest; read, if not
// nil, is told of each piece.
func (f *File) Verify(ctx context.Context, read func(bytes int64)) error {
	var head [len(magic)]byte
	if _, err := f.f.ReadAt(head[:], 0); err != nil || string(head[:]) != magic {
		return damaged(0, "the first bytes are %q, %v", head, err)
	}
	for i, e := range f.entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if _, err := f.raw(i); err != nil {
			return err
		}
		if read != nil {
			read(int64(e.stored))
		}
	}
	// Once more, since it was read when the file was opened.
	again := &File{f: f.f, name: f.name}
	if err := again.readIndex(); err != nil {
		return err
	}
	if read != nil {
		read(int64(len(magic)) + int64(len(f.entries))*entrySize + footerSize)
	}
	return nil
}
