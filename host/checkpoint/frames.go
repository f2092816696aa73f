package checkpoint

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ratoon-project/ratoon/host/checkpoint/framefile"
	"github.com/ratoon-project/ratoon/host/memory"
)

// MaxObjects is how many files of frames a checkpoint is put together from at
// most.
const MaxObjects = 8

// pageBytes is the least piece of memory that a frame is cut into.
const pageBytes = 4096

// Frames say where the pages of a compacted checkpoint are: not in a file of
// its own but in frames, which checkpoints share.
type Frames struct {
	// Objects are the files of frames, at most MaxObjects.
	Objects []Object `json:"objects"`
	// Runs and Pieces are how long the tables after the body are.
	Runs   int `json:"runs"`
	Pieces int `json:"pieces"`
	// Own is the bytes of the frames that were made for this checkpoint.
	Own int64 `json:"own"`

	pieces []piece
}

// Object is one file of frames.
type Object struct {
	Name string `json:"name"` // sha256 of its index, hex
	Size int64  `json:"size"` // bytes
}

// piece is where some pages lie. The pieces, in order, make up the pages.
type piece struct {
	object uint8 // of Objects
	first  uint8 // page of the frame's content
	pages  uint8
	frame  uint32
}

func (p piece) bytes() int64 { return int64(p.pages) * pageBytes }

// pieceEntry is the length of a piece in the table, in bytes.
const pieceEntry = 8

// encodeTable writes the run table as memory.EncodeRuns does, and after it the
// pieces: object, first page, pages, 0, frame (4 bytes, little-endian).
func encodeTable(runs Runs, pieces []piece) []byte {
	b := memory.EncodeRuns(runs)
	for _, p := range pieces {
		b = append(b, p.object, p.first, p.pages, 0)
		b = binary.LittleEndian.AppendUint32(b, p.frame)
	}
	return b
}

// decodeTable reads what encodeTable wrote into m.
func (m *Manifest) decodeTable(b []byte) error {
	f := m.Files.Frames
	if f.Pieces < 0 || f.Pieces > len(b)/pieceEntry {
		return fmt.Errorf("%w: tables of %d bytes for %d pieces", errDamaged, len(b), f.Pieces)
	}
	end := len(b) - f.Pieces*pieceEntry
	runs, err := memory.DecodeRuns(b[:end])
	if err != nil || len(runs) != f.Runs {
		return fmt.Errorf("%w: %d runs, want %d: %w", errDamaged, len(runs), f.Runs, err)
	}
	f.pieces = make([]piece, f.Pieces)
	for i := range f.pieces {
		e := b[end+i*pieceEntry:]
		f.pieces[i] = piece{object: e[0], first: e[1], pages: e[2], frame: binary.LittleEndian.Uint32(e[4:])}
		if e[3] != 0 {
			return fmt.Errorf("%w: piece %d", errDamaged, i)
		}
	}
	m.Files.Pages.Runs = runs
	return nil
}

// validate refuses what no compaction writes.
func (f *Frames) validate(p Pages) error {
	if f == nil {
		return nil
	}
	if len(f.Objects) > MaxObjects || f.Own < 0 {
		return fmt.Errorf("%d objects, %d bytes of its own", len(f.Objects), f.Own)
	}
	for i, o := range f.Objects {
		if err := framefile.ParseName(o.Name); err != nil {
			return err
		}
		if o.Size <= 0 || slices.ContainsFunc(f.Objects[:i], func(other Object) bool { return other.Name == o.Name }) {
			return fmt.Errorf("object %.12s of %d bytes", o.Name, o.Size)
		}
	}
	var total int64
	for i, p := range f.pieces {
		if int(p.object) >= len(f.Objects) || p.pages == 0 || int64(p.first)*pageBytes+p.bytes() > framefile.Window {
			return fmt.Errorf("piece %d is not possible: %+v", i, p)
		}
		total += p.bytes()
	}
	if total != p.Size {
		return fmt.Errorf("pieces hold %d bytes, the pages %d", total, p.Size)
	}
	return nil
}

// names of the objects.
func (f *Frames) names() []string {
	if f == nil {
		return nil
	}
	out := make([]string, len(f.Objects))
	for i, o := range f.Objects {
		out[i] = o.Name
	}
	return out
}
