package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// Format is the version of the manifests that this release writes. A release
// reads its own and older formats.
const Format = 1

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

// seal writes v under a header.
func seal(kind string, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	body = append(body, '\n')
	line, err := json.Marshal(header{kind, Format, len(body), crc32.Checksum(body, castagnoli)})
	if err != nil {
		return nil, fmt.Errorf("encode manifest header: %w", err)
	}
	line = append(line, '\n')
	return append(line, body...), nil
}

// unseal checks the header and decodes what follows into v. Its errors wrap
// errDamaged or errNewer.
func unseal(kind string, data []byte, v any) (format int, err error) {
	end := bytes.IndexByte(data[:min(len(data), maxHeader)], '\n')
	if end < 0 {
		return 0, fmt.Errorf("%w: no header line", errDamaged)
	}
	line, body := data[:end], data[end+1:]
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return 0, fmt.Errorf("%w: header: %w", errDamaged, err)
	}
	if h.Kind == kind && h.Format > Format {
		return 0, fmt.Errorf("%w: format %d, this release reads up to %d", errNewer, h.Format, Format)
	}
	// Only the exact bytes that seal would write: JSON alone would forgive a
	// flipped bit in a field's name.
	want, err := json.Marshal(header{kind, Format, len(body), crc32.Checksum(body, castagnoli)})
	if err != nil {
		return 0, fmt.Errorf("encode manifest header: %w", err)
	}
	if !bytes.Equal(line, want) {
		return 0, fmt.Errorf("%w: header says %s, content is %s", errDamaged, line, want)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return 0, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return h.Format, nil
}
