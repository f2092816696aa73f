package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// Formats of manifests. A release reads the newest of each kind and all before.
const (
	// FormatFlat is of bases, and of checkpoints that have their pages in a file
	// of their own.
	FormatFlat = 1
	// FormatFrames is of checkpoints whose pages are in frames.
	FormatFrames = 2
)

// newest is the newest format of each kind that this release reads.
var newest = map[string]int{kindCheckpoint: FormatFrames, kindBase: FormatFlat}

// maxHeader bounds the first line of a manifest.
const maxHeader = 256

// Kinds of manifest.
const (
	kindCheckpoint = "checkpoint"
	kindBase       = "base"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the first line of a manifest; Size and CRC32C are of all that
// follows it.
type header struct {
	Kind   string `json:"ratoon"`
	Format int    `json:"format"`
	Size   int    `json:"size"`
	CRC32C uint32 `json:"crc32c"`
}

// seal writes v under a header, as FormatFlat.
func seal(kind string, v any) ([]byte, error) { return sealTable(kind, FormatFlat, v, nil) }

// sealTable writes v and a binary table after it under a header.
func sealTable(kind string, format int, v any, table []byte) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	body = append(body, '\n')
	body = append(body, table...)
	line, err := json.Marshal(header{kind, format, len(body), crc32.Checksum(body, castagnoli)})
	if err != nil {
		return nil, fmt.Errorf("encode manifest header: %w", err)
	}
	line = append(line, '\n')
	return append(line, body...), nil
}

// unseal checks the header and decodes what follows into v; a table is what
// stands after it. Its errors wrap errDamaged or errNewer.
func unseal(kind string, data []byte, v any) (format int, table []byte, err error) {
	end := bytes.IndexByte(data[:min(len(data), maxHeader)], '\n')
	if end < 0 {
		return 0, nil, fmt.Errorf("%w: no header line", errDamaged)
	}
	line, body := data[:end], data[end+1:]
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return 0, nil, fmt.Errorf("%w: header: %w", errDamaged, err)
	}
	if h.Kind == kind && h.Format > newest[kind] {
		return 0, nil, fmt.Errorf("%w: format %d, this release reads up to %d", errNewer, h.Format, newest[kind])
	}
	// Only the exact bytes that seal would write: JSON alone would forgive a
	// flipped bit in a field's name.
	want, err := json.Marshal(header{kind, max(h.Format, FormatFlat), len(body), crc32.Checksum(body, castagnoli)})
	if err != nil {
		return 0, nil, fmt.Errorf("encode manifest header: %w", err)
	}
	if !bytes.Equal(line, want) {
		return 0, nil, fmt.Errorf("%w: header says %s, content is %s", errDamaged, line, want)
	}
	if h.Format >= FormatFrames {
		end := bytes.IndexByte(body, '\n')
		if end < 0 {
			return 0, nil, fmt.Errorf("%w: no body line", errDamaged)
		}
		body, table = body[:end], body[end+1:]
	}
	if err := json.Unmarshal(body, v); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return h.Format, table, nil
}
