package framefile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// Window is how much guest memory one frame is a part of, in bytes.
const Window = 64 << 10

// The file: magic, frames, index, footer. Numbers are little-endian.
//
//	index, 56 bytes a frame:
//	0  window: offset in guest RAM / Window, 8 bytes
//	8  offset of the frame in the file, 8 bytes
//	16 length of the frame, 4 bytes
//	20 length of its content, 4 bytes
//	24 sha256 of the frame, 32 bytes
//
//	footer, 16 bytes:
//	0  offset of the index, 8 bytes
//	8  magic of the footer, 8 bytes
const (
	magic      = "ratoonF1"
	footMagic  = "ratoonE1"
	entrySize  = 56
	footerSize = 16
	// maxFrame bounds a frame: zstd adds little to what it cannot compress.
	maxFrame = Window + 1<<10
)

// entry is one frame in the index.
type entry struct {
	window uint64
	offset int64
	stored uint32
	size   uint32
	digest [sha256.Size]byte
}

func (e entry) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, e.window)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.offset))
	b = binary.LittleEndian.AppendUint32(b, e.stored)
	b = binary.LittleEndian.AppendUint32(b, e.size)
	return append(b, e.digest[:]...)
}

func parseEntry(b []byte) entry {
	return entry{window: binary.LittleEndian.Uint64(b), offset: int64(binary.LittleEndian.Uint64(b[8:])),
		stored: binary.LittleEndian.Uint32(b[16:]), size: binary.LittleEndian.Uint32(b[20:]), digest: [32]byte(b[24:entrySize])}
}

// ParseName checks a name that came from outside: 64 hex digits, and so safe as
// a file name.
func ParseName(s string) error {
	if len(s) != 2*sha256.Size || strings.Trim(s, "0123456789abcdef") != "" {
		return fmt.Errorf("%.80q is not the name of a file of frames", s)
	}
	return nil
}

// nameOf is the name of a file with that end.
func nameOf(indexAndFooter []byte) string {
	sum := sha256.Sum256(indexAndFooter)
	return hex.EncodeToString(sum[:])
}

// Damage is content that is not what it was.
type Damage struct {
	Offset int64 // byte of the file at which the damaged piece begins
	Reason string
}

func (d *Damage) Error() string { return fmt.Sprintf("damaged at byte %d: %s", d.Offset, d.Reason) }

func damaged(offset int64, format string, args ...any) error {
	return &Damage{offset, fmt.Sprintf(format, args...)}
}
