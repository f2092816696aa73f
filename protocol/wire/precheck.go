package wire

import (
	"encoding/binary"

	"github.com/ratoon-project/ratoon/protocol"
)

// kind is what a msgpack header announces.
type kind uint8

const (
	kindScalar kind = iota
	kindString
	kindBinary
	kindArray
	kindMap
)

// head is one decoded msgpack header.
type head struct {
	kind kind
	nil  bool
	size int // bytes of the header, and of the value for a scalar
	n    int // bytes of a string or binary, elements of an array, pairs of a map
}

// Precheck walks one msgpack value and refuses what no honest peer sends:
// nesting over protocol.MaxDepth, a count or length beyond the bytes that are
// left, map keys that are not strings, extension types, and bytes after the
// value. It allocates nothing.
func Precheck(b []byte) error {
	n, err := walk(b, 0)
	if err != nil {
		return err
	}
	if n != len(b) {
		return protocol.Errorf(protocol.CodeProtocol, "%d bytes follow the msgpack value", len(b)-n)
	}
	return nil
}

// walk returns the length of the value at the start of b.
func walk(b []byte, depth int) (int, error) {
	h, err := header(b)
	if err != nil {
		return 0, err
	}
	switch h.kind {
	case kindScalar:
		return h.size, nil
	case kindString, kindBinary:
		return h.size + h.n, nil
	}
	if depth == protocol.MaxDepth {
		return 0, protocol.Errorf(protocol.CodeProtocol, "msgpack nested deeper than %d", protocol.MaxDepth)
	}
	at := h.size
	for range h.n {
		if h.kind == kindMap {
			key, err := header(b[at:])
			if err != nil {
				return 0, err
			}
			if key.kind != kindString {
				return 0, protocol.Errorf(protocol.CodeProtocol, "msgpack map key is not a string")
			}
			at += key.size + key.n
		}
		n, err := walk(b[at:], depth+1)
		if err != nil {
			return 0, err
		}
		at += n
	}
	return at, nil
}

// header reads the header at the start of b and checks that what it announces
// can be there. The codes are those of the msgpack specification.
func header(b []byte) (head, error) {
	if len(b) == 0 {
		return head{}, errTruncated()
	}
	h, width := head{size: 1}, 0
	switch c := b[0]; {
	case c <= 0x7f || c >= 0xe0: // fixint
	case c <= 0x8f:
		h.kind, h.n = kindMap, int(c&0x0f)
	case c <= 0x9f:
		h.kind, h.n = kindArray, int(c&0x0f)
	case c <= 0xbf:
		h.kind, h.n = kindString, int(c&0x1f)
	case c == 0xc0:
		h.nil = true
	case c == 0xc2 || c == 0xc3: // bool
	case c >= 0xc4 && c <= 0xc6:
		h.kind, width = kindBinary, 1<<(c-0xc4)
	case c == 0xca || c == 0xcb: // float
		h.size += 4 << (c - 0xca)
	case c >= 0xcc && c <= 0xcf: // unsigned
		h.size += 1 << (c - 0xcc)
	case c >= 0xd0 && c <= 0xd3: // signed
		h.size += 1 << (c - 0xd0)
	case c >= 0xd9 && c <= 0xdb:
		h.kind, width = kindString, 1<<(c-0xd9)
	case c == 0xdc || c == 0xdd:
		h.kind, width = kindArray, 2<<(c-0xdc)
	case c == 0xde || c == 0xdf:
		h.kind, width = kindMap, 2<<(c-0xde)
	default: // 0xc1 is unused; the rest are extension types
		return head{}, protocol.Errorf(protocol.CodeProtocol, "msgpack code %#02x is not used by the protocol", c)
	}
	h.size += width
	if len(b) < h.size {
		return head{}, errTruncated()
	}
	switch width {
	case 1:
		h.n = int(b[1])
	case 2:
		h.n = int(binary.BigEndian.Uint16(b[1:]))
	case 4:
		h.n = int(binary.BigEndian.Uint32(b[1:]))
	}
	least := h.n // an element takes at least one byte, a pair two
	if h.kind == kindMap {
		least *= 2
	}
	if least > len(b)-h.size {
		return head{}, errTruncated()
	}
	return h, nil
}

func errTruncated() error {
	return protocol.Errorf(protocol.CodeProtocol, "msgpack announces more than the bytes that are left")
}
