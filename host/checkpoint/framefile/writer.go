package framefile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Writer writes a file of frames. It does not close what it writes to.
type Writer struct {
	w       io.Writer
	encoder *zstd.Encoder
	at      int64
	stored  []byte
	entries []entry
}

// NewWriter makes a writer; it does no I/O.
func NewWriter(w io.Writer) *Writer {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithWindowSize(Window))
	if err != nil {
		panic(err) // of options that are constant
	}
	return &Writer{w: w, encoder: encoder}
}

// Frames is how many frames were added.
func (w *Writer) Frames() int { return len(w.entries) }

// Add adds pages of a window, at most Window bytes, and returns the number of
// their frame.
func (w *Writer) Add(window uint64, content []byte) (int, error) {
	if len(content) == 0 || len(content) > Window {
		return 0, fmt.Errorf("add a frame of %d bytes", len(content))
	}
	w.stored = w.encoder.EncodeAll(content, w.stored[:0])
	return w.add(entry{window: window, stored: uint32(len(w.stored)), size: uint32(len(content)), digest: sha256.Sum256(w.stored)}, w.stored)
}

// Copy adds a frame of another file as it is.
func (w *Writer) Copy(from *File, frame int) (int, error) {
	b, err := from.raw(frame)
	if err != nil {
		return 0, err
	}
	return w.add(from.entries[frame], b)
}

func (w *Writer) add(e entry, b []byte) (int, error) {
	if w.at == 0 {
		if err := w.put([]byte(magic)); err != nil {
			return 0, err
		}
	}
	e.offset = w.at
	if err := w.put(b); err != nil {
		return 0, err
	}
	w.entries = append(w.entries, e)
	return len(w.entries) - 1, nil
}

func (w *Writer) put(b []byte) error {
	_, err := w.w.Write(b)
	w.at += int64(len(b))
	return err
}

// Finish writes the index, and returns the name and the size in bytes. A file
// has at least one frame.
func (w *Writer) Finish() (name string, size int64, err error) {
	if len(w.entries) == 0 {
		return "", 0, fmt.Errorf("finish a file without frames")
	}
	var end []byte
	for _, e := range w.entries {
		end = e.append(end)
	}
	end = binary.LittleEndian.AppendUint64(end, uint64(w.at))
	end = append(end, footMagic...)
	if err := w.put(end); err != nil {
		return "", 0, err
	}
	return nameOf(end), w.at, nil
}
