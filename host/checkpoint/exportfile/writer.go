package exportfile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Writer writes a file.
type Writer struct {
	w       io.Writer
	sum     hash.Hash // of all that was written
	encoder *zstd.Encoder
	stored  []byte
	began   bool
	part    Part
	next    uint64 // where the part may go on
}

// NewWriter makes a writer; it does no I/O.
func NewWriter(w io.Writer) *Writer {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	if err != nil {
		panic(err) // of options that are constant
	}
	return &Writer{w: w, sum: sha256.New(), encoder: encoder}
}

// Write adds content, of any length, that stands at the offset of a part.
// Parts are written in their order, and each from its beginning to its end.
func (w *Writer) Write(part Part, offset int64, content []byte) error {
	if order[part] < order[w.part] || part == w.part && uint64(offset) < w.next {
		return fmt.Errorf("write %q at %d after %q at %d", part, offset, w.part, w.next)
	}
	for len(content) > 0 {
		n := min(len(content), MaxContent)
		if err := w.record(part, uint64(offset), content[:n]); err != nil {
			return err
		}
		offset, content = offset+int64(n), content[n:]
	}
	return nil
}

// To is an io.Writer for a part that is written without gaps.
func (w *Writer) To(part Part) io.Writer { return &partWriter{w: w, part: part} }

type partWriter struct {
	w    *Writer
	part Part
	at   int64
}

// Write implements io.Writer.
func (p *partWriter) Write(b []byte) (int, error) {
	if err := p.w.Write(p.part, p.at, b); err != nil {
		return 0, err
	}
	p.at += int64(len(b))
	return len(b), nil
}

func (w *Writer) record(part Part, offset uint64, content []byte) error {
	if err := w.begin(); err != nil {
		return err
	}
	w.stored = w.encoder.EncodeAll(content, w.stored[:0])
	h := header{part: part, size: uint32(len(content)), offset: offset, stored: uint32(len(w.stored)), crc: crc32.Checksum(w.stored, castagnoli)}
	if err := w.put(h.encode()); err != nil {
		return err
	}
	if err := w.put(w.stored); err != nil {
		return err
	}
	w.part, w.next = part, offset+uint64(len(content))
	return nil
}

// begin writes what every file begins with.
func (w *Writer) begin() error {
	if w.began {
		return nil
	}
	w.began = true
	return w.put(fmt.Appendf(nil, "%s%d\n", magic, Format))
}

func (w *Writer) put(b []byte) error {
	w.sum.Write(b)
	_, err := w.w.Write(b)
	return err
}

// Close writes the end, without which a file is not whole. It does not close
// the underlying writer.
func (w *Writer) Close() error {
	if err := w.begin(); err != nil {
		return err
	}
	digest := hex.EncodeToString(w.sum.Sum(nil))
	return w.record(end, 0, []byte(digest))
}
