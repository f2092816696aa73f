package exportfile

import "hash/crc32"

// Record is one record as its header would have it, right checksums included.
func Record(part string, offset uint64, size, stored uint32, content []byte) []byte {
	h := header{part: Part(part), size: size, offset: offset, stored: stored, crc: crc32.Checksum(content, castagnoli)}
	return append(h.encode(), content...)
}

// Compress is how content is stored.
func Compress(content []byte) []byte { return NewWriter(nil).encoder.EncodeAll(content, nil) }
