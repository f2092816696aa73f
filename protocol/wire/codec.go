package wire

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/ratoon-project/ratoon/protocol"
)

// Marshal encodes v: structs as maps in the order of their fields, integers in
// their shortest form, map[string]string and map[string]any in order of keys.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	if err := encode(&buf, v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func encode(buf *bytes.Buffer, v any) error {
	if err := newEncoder(buf).Encode(v); err != nil {
		return fmt.Errorf("encode %T: %w", v, err)
	}
	return nil
}

func newEncoder(buf *bytes.Buffer) *msgpack.Encoder {
	e := msgpack.NewEncoder(buf)
	e.UseCompactInts(true)
	e.SetSortMapKeys(true)
	return e
}

// Unmarshal decodes b, which must hold exactly one value, into the pointer v.
// Fields that v lacks are ignored. In a field of type any, maps become
// map[string]any, integers int64 (uint64 beyond its range), binary []byte.
func Unmarshal(b []byte, v any) error {
	if err := Precheck(b); err != nil {
		return err
	}
	return decode(b, v)
}

// decode decodes what Precheck has passed. The decoder is a new one each time:
// msgpack.Unmarshal would start a goroutine for ever per pointer type.
func decode(b []byte, v any) error {
	if err := checkBudget(b, v); err != nil {
		return err
	}
	if err := msgpack.NewDecoder(bytes.NewReader(b)).Decode(v); err != nil {
		return protocol.Errorf(protocol.CodeProtocol, "decode %T: %v", v, err)
	}
	normalize(reflect.ValueOf(v))
	return nil
}
