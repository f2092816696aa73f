package exportfile

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/ratoon-project/ratoon/protocol"
)

// Content is a piece of a part.
type Content struct {
	Part   Part
	Offset int64  // in the part
	Bytes  []byte // valid until the next call of Next
	At     int64  // byte of the file where its record begins
}

// Reader reads a file.
type Reader struct {
	r       *bufio.Reader
	at      int64     // bytes read
	sum     hash.Hash // of them
	decoder *zstd.Decoder
	stored  []byte
	content []byte
	began   bool
	part    Part
	next    uint64
	err     error // sticky
}

// NewReader makes a reader; it does no I/O.
func NewReader(r io.Reader) *Reader {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxContent), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(err) // of options that are constant
	}
	return &Reader{r: bufio.NewReaderSize(r, 256<<10), sum: sha256.New(), decoder: decoder}
}

// Next returns the next content. io.EOF says that the file was whole and had
// the digest that stands at its end; nothing may be used before that.
func (r *Reader) Next() (Content, error) {
	if r.err != nil {
		return Content{}, r.err
	}
	c, err := r.read()
	r.err = err
	return c, err
}

// At is how many bytes were read.
func (r *Reader) At() int64 { return r.at }

func (r *Reader) read() (Content, error) {
	if !r.began {
		if err := r.first(); err != nil {
			return Content{}, err
		}
		r.began = true
	}
	at, before := r.at, r.sum.Sum(nil)
	h, err := r.header()
	if err != nil {
		return Content{}, err
	}
	b, err := r.body(h)
	if err != nil {
		return Content{}, err
	}
	if h.part == end {
		return Content{}, r.last(at, string(b), hex.EncodeToString(before))
	}
	r.part, r.next = h.part, h.offset+uint64(h.size)
	return Content{Part: h.part, Offset: int64(h.offset), Bytes: b, At: at}, nil
}

// first reads the line that names the format.
func (r *Reader) first() error {
	line, err := r.r.Peek(len(magic))
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read exported checkpoint: %w", err)
	}
	if string(line) != magic {
		return Bad(0, "it is not an exported checkpoint")
	}
	var text []byte
	for len(text) == 0 || text[len(text)-1] != '\n' {
		var b [1]byte
		if err := r.full(b[:]); err != nil {
			return err
		}
		if text = append(text, b[0]); len(text) > len(magic)+10 {
			return Bad(int64(len(magic)), "the version of the format is not understood")
		}
	}
	version, err := strconv.Atoi(strings.TrimSuffix(string(text[len(magic):]), "\n"))
	switch {
	case err != nil || version < 1 || fmt.Sprintf("%s%d\n", magic, version) != string(text):
		return Bad(int64(len(magic)), "the version of the format is not understood")
	case version > Format:
		return protocol.Errorf(protocol.CodeCheckpointRefused, "the exported checkpoint has format %d; this release reads up to %d", version, Format).
			With("offset", int64(len(magic)))
	}
	return nil
}

// full fills b.
func (r *Reader) full(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.at += int64(n)
	r.sum.Write(b[:n])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Bad(r.at, "it is cut short")
	}
	if err != nil {
		return fmt.Errorf("read exported checkpoint: at byte %d: %w", r.at, err)
	}
	return nil
}

// header reads the header of a record and holds it to the limits and to the
// order of parts.
func (r *Reader) header() (header, error) {
	at := r.at
	var b [headerSize]byte
	if err := r.full(b[:]); err != nil {
		return header{}, err
	}
	h, ok := decodeHeader(b[:])
	switch {
	case !ok:
		return h, Bad(at, "the header of a record is damaged")
	case order[h.part] == 0:
		return h, Bad(at, "part %q is not known", h.part)
	case h.size == 0 || h.size > MaxContent || h.stored > maxStored:
		return h, Bad(at, "a record claims %d bytes, stored as %d; at most %d can be", h.size, h.stored, MaxContent)
	case h.offset > 1<<62:
		return h, Bad(at, "a record claims to be at byte %d of %q", h.offset, h.part)
	case order[h.part] < order[r.part]:
		return h, Bad(at, "%q stands after %q", h.part, r.part)
	}
	next := uint64(0)
	if h.part == r.part {
		next = r.next
	}
	if h.offset < next || h.offset > next && !h.part.sparse() {
		return h, Bad(at, "%q goes on at byte %d of it, want %d", h.part, h.offset, next)
	}
	return h, nil
}

// body reads the content of a record.
func (r *Reader) body(h header) ([]byte, error) {
	at := r.at
	if cap(r.stored) < int(h.stored) {
		r.stored = make([]byte, maxStored)
	}
	stored := r.stored[:h.stored]
	if err := r.full(stored); err != nil {
		return nil, err
	}
	if crc32.Checksum(stored, castagnoli) != h.crc {
		return nil, Bad(at, "%d bytes of %q are damaged", h.stored, h.part)
	}
	var err error
	r.content, err = r.decoder.DecodeAll(stored, r.content[:0])
	if err != nil || len(r.content) != int(h.size) {
		return nil, Bad(at, "%d bytes of %q do not decompress to %d: %v", h.stored, h.part, h.size, err)
	}
	return r.content, nil
}

// last holds the file to the digest at its end, and looks that it is the end.
func (r *Reader) last(at int64, digest, want string) error {
	if digest != want {
		return Bad(at, "the digest of all before is %s, not %.64q", want, digest)
	}
	if _, err := r.r.ReadByte(); err == nil {
		return Bad(r.at, "it goes on after its end")
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read exported checkpoint: at byte %d: %w", r.at, err)
	}
	return io.EOF
}
