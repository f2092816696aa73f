package client

import (
	"fmt"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// Value is a payload or result that a guest program chose: the msgpack
// encoding of any value, or empty for none.
type Value []byte

// Decode stores the value in the variable that into points to.
func (v Value) Decode(into any) error {
	if len(v) == 0 {
		return nil
	}
	if err := wire.Unmarshal(v, into); err != nil {
		return fmt.Errorf("decode a payload: %w", err)
	}
	return nil
}

// Any is the value as Go types: nil, bool, integers, float64, string, []byte,
// []any, map[string]any.
func (v Value) Any() (any, error) {
	var a any
	err := v.Decode(&a)
	return a, err
}

func encode(v any) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	if raw, ok := v.(Value); ok {
		return raw, nil
	}
	b, err := wire.Marshal(v)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "encode a payload: %v", err)
	}
	return b, nil
}
