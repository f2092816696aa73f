package exportfile

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/ratoon-project/ratoon/protocol"
)

// Format is the version of the files that this release writes and reads.
const Format = 1

// magic begins the first line of every format; the version and a newline
// follow.
const magic = "ratoon checkpoint export "

// MaxContent is the most content of one record, in bytes.
const MaxContent = 1 << 20

// Part says what a record's content belongs to.
type Part string

// The parts, in the order in which they stand in a file.
const (
	Manifest Part = "mani" // of the checkpoint
	Base     Part = "base" // the manifest of the base
	RAM      Part = "ram " // of the base; what no record covers is zeros
	State    Part = "stat" // the device state
	Pages    Part = "page" // the runs with data
	end      Part = "end "
)

// order is the place of each part.
var order = map[Part]int{Manifest: 1, Base: 2, RAM: 3, State: 4, Pages: 5, end: 6}

// sparse parts may leave gaps.
func (p Part) sparse() bool { return p == RAM }

// headerSize is the length of what stands before the compressed content:
//
//	0  part, 4 letters
//	4  size of the content, 4 bytes
//	8  offset of the content in its part, 8 bytes
//	16 size as stored, 4 bytes
//	20 crc32c of the content as stored, 4 bytes
//	24 crc32c of the bytes above, 4 bytes
//
// Numbers are little-endian, crc32c is that of Castagnoli.
const headerSize = 28

// maxStored bounds the compressed content: zstd adds little to what it cannot
// compress.
const maxStored = MaxContent + MaxContent/128 + 64

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header describes one record.
type header struct {
	part   Part
	size   uint32
	offset uint64
	stored uint32
	crc    uint32
}

func (h header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, h.part...)
	b = binary.LittleEndian.AppendUint32(b, h.size)
	b = binary.LittleEndian.AppendUint64(b, h.offset)
	b = binary.LittleEndian.AppendUint32(b, h.stored)
	b = binary.LittleEndian.AppendUint32(b, h.crc)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHeader is false for bytes that encode did not write.
func decodeHeader(b []byte) (header, bool) {
	if crc32.Checksum(b[:headerSize-4], castagnoli) != binary.LittleEndian.Uint32(b[headerSize-4:]) {
		return header{}, false
	}
	return header{part: Part(b[:4]), size: binary.LittleEndian.Uint32(b[4:]), offset: binary.LittleEndian.Uint64(b[8:]),
		stored: binary.LittleEndian.Uint32(b[16:]), crc: binary.LittleEndian.Uint32(b[20:])}, true
}

// Bad is the error of a file that cannot be what an export wrote, at a byte.
func Bad(offset int64, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "the exported checkpoint is not whole: at byte %d: %s", offset, fmt.Sprintf(format, args...)).
		With("offset", offset)
}
