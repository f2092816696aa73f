package wire

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

var types = sync.OnceValue(protocol.Types)

// EncodeMessage encodes m as the array [type, body].
func EncodeMessage(m protocol.Message) ([]byte, error) {
	var buf bytes.Buffer
	e := newEncoder(&buf)
	if err := e.EncodeArrayLen(2); err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	if err := e.EncodeString(m.Type()); err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("encode message %s: %w", m.Type(), err)
	}
	return buf.Bytes(), nil
}

// DecodeMessage decodes what EncodeMessage made. The result is a pointer to a
// message struct, as in protocol.Types.
func DecodeMessage(b []byte) (protocol.Message, error) {
	if err := Precheck(b); err != nil {
		return nil, err
	}
	h, _ := header(b) // Precheck has passed every header in b
	if h.kind != kindArray || h.n != 2 {
		return nil, protocol.Errorf(protocol.CodeProtocol, "a message is not an array of type and body")
	}
	b = b[h.size:]
	if h, _ = header(b); h.kind != kindString {
		return nil, protocol.Errorf(protocol.CodeProtocol, "the type of a message is not a string")
	}
	name, b := string(b[h.size:h.size+h.n]), b[h.size+h.n:]
	make, ok := types()[name]
	if !ok {
		return nil, protocol.Errorf(protocol.CodeProtocol, "message type %.64q is unknown", name)
	}
	if h, _ = header(b); h.kind != kindMap {
		return nil, protocol.Errorf(protocol.CodeProtocol, "the body of message %s is not a map", name)
	}
	m := make()
	if err := decode(b, m); err != nil {
		return nil, err
	}
	return m, nil
}
