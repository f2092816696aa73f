package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/ratoon-project/ratoon/protocol"
)

// readLines decodes a file of JSON lines; blank lines are skipped, unknown
// fields refused, since a misspelt one would be a silent wrong answer.
func readLines[T any](path string, check func(*T) error) ([]T, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		code := protocol.CodeInvalidArgument
		if errors.Is(err, fs.ErrNotExist) {
			code = protocol.CodeNotFound
		}
		return nil, protocol.Errorf(code, "read %s: %v", path, err)
	}
	var out []T
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var v T
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		err := d.Decode(&v)
		if err == nil && d.More() {
			err = errors.New("more than one value on the line")
		}
		if err == nil {
			err = check(&v)
		}
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%s, line %d: %v", path, number, err)
		}
		out = append(out, v)
	}
	return out, nil
}
