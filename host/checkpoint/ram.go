package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"hash/crc32"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

var zeros [chunk]byte

// eachChunk calls do with a whole file in order, in pieces of at most chunk
// bytes; p is nil for n bytes in a hole.
func eachChunk(ctx context.Context, f *os.File, size int64, do func(off, n int64, p []byte) error) error {
	buf := make([]byte, chunk)
	for off := int64(0); off < size; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(chunk, size-off)
		p := buf[:n]
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= off+n {
			p = nil
		} else if read, err := f.ReadAt(p, off); err != nil {
			return damagedAt(off+int64(read), "%v", err)
		}
		if err := do(off, n, p); err != nil {
			return err
		}
		off += n
	}
	return nil
}

const (
	// minBlock is the least length of a block of RAM that has a checksum of its
	// own.
	minBlock = chunk
	// maxBlocks bounds how many there are.
	maxBlocks = 4096
)

// blockSize is that for a RAM image of so many bytes.
func blockSize(size int64) int64 {
	b := int64(minBlock)
	for size > b*maxBlocks {
		b *= 2
	}
	return b
}

// ramSum computes the checksums of a RAM image that is read in order.
type ramSum struct {
	strong hash.Hash
	crc    hash.Hash32
	block  int64
	at     int64
	blocks []uint32
}

func newRAMSum(block int64) *ramSum {
	return &ramSum{strong: sha256.New(), crc: crc32.New(castagnoli), block: block}
}

// add takes the next n bytes, p or zeros, at most a chunk. Chunks do not cross
// blocks, whose length is a multiple of theirs.
func (r *ramSum) add(n int64, p []byte) {
	if p == nil {
		p = zeros[:n]
	}
	r.strong.Write(p)
	r.crc.Write(p)
	if r.at += n; r.at%r.block == 0 {
		r.end()
	}
}

func (r *ramSum) end() {
	r.blocks = append(r.blocks, r.crc.Sum32())
	r.crc.Reset()
}

// done gives what the manifest says of the image.
func (r *ramSum) done() BaseRAM {
	if r.at%r.block != 0 {
		r.end()
	}
	return BaseRAM{Size: r.at, SHA256: hexSum(r.strong), Blocks: &Blocks{Size: r.block, CRC32C: r.blocks}}
}

// sumRAM reads a RAM image whole.
func sumRAM(ctx context.Context, path string) (BaseRAM, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return BaseRAM{}, err
	}
	got, err := sumBlocks(ctx, f, size, blockSize(size), nil)
	return got, errors.Join(err, f.Close())
}

// sumBlocks tells read, if not nil, of each piece.
func sumBlocks(ctx context.Context, f *os.File, size, block int64, read func(int64)) (BaseRAM, error) {
	sum := newRAMSum(block)
	err := eachChunk(ctx, f, size, func(_, n int64, p []byte) error {
		sum.add(n, p)
		if read != nil {
			read(n)
		}
		return nil
	})
	return sum.done(), err
}

// verify reads the image at path and holds it to its checksums; read, if not
// nil, is told of each piece.
func (r BaseRAM) verify(ctx context.Context, path string, read func(int64)) error {
	f, size, err := openRegular(path)
	if err != nil {
		return err
	}
	got, err := sumBlocks(ctx, f, size, r.blockSize(), read)
	if err == nil {
		err = r.compare(got)
	}
	return errors.Join(err, f.Close())
}

// compare holds an image that was read, with blocks of the same size, to what
// its manifest says.
func (r BaseRAM) compare(got BaseRAM) error {
	if r.Blocks != nil {
		for i, want := range r.Blocks.CRC32C {
			if i >= len(got.Blocks.CRC32C) || got.Blocks.CRC32C[i] != want {
				return damagedAt(int64(i)*r.Blocks.Size, "the block of %d bytes has not crc32c %08x", r.Blocks.Size, want)
			}
		}
	}
	if r.SHA256 != got.SHA256 {
		return damagedAt(0, "sha256 %s, want %s", got.SHA256, r.SHA256)
	}
	return nil
}

// blockSize is that of the blocks in the manifest, or what sumRAM would take.
func (r BaseRAM) blockSize() int64 {
	if r.Blocks != nil {
		return r.Blocks.Size
	}
	return blockSize(r.Size)
}

func (r BaseRAM) equal(o BaseRAM) bool {
	return r.Size == o.Size && r.SHA256 == o.SHA256 && r.SHA256 != ""
}

// validate refuses blocks that cannot be of the image.
func (b *Blocks) validate(size int64) bool {
	return b == nil || b.Size >= minBlock && b.Size%minBlock == 0 && int64(len(b.CRC32C)) == (size+b.Size-1)/b.Size
}

// known is r without checksums where it has not all of them.
func (r BaseRAM) known() BaseRAM {
	if r.SHA256 == "" || r.Blocks == nil {
		return BaseRAM{Size: r.Size}
	}
	r.Blocks = &Blocks{r.Blocks.Size, slices.Clone(r.Blocks.CRC32C)}
	return r
}
