package link

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/ratoon-project/ratoon/protocol"
)

// A record is one byte of type, three bytes of big-endian length, payload.
const (
	recordSYN  = 0x53 // 'S': hello of a connection
	recordACK  = 0x41 // 'A': the other's nonce was seen
	recordDATA = 0x44 // 'D': bytes of the yamux session
	recordEND  = 0x45 // 'E': nothing follows

	recordHeader = 4
	// maxRecord is the longest payload of a record.
	maxRecord = 64 << 10
	// maxDiscard bounds what is skipped in search of the first SYN or ACK.
	maxDiscard = 8 << 20
	nonceLen   = 16
)

// magic begins the payload of SYN and ACK. The first byte is not ASCII and the
// rest holds both line ends, as in PNG, so that text is never mistaken for it.
var magic = []byte("\x8bRATN\r\n\x01")

// synMark is how every SYN begins.
var synMark = func() []byte {
	b := make([]byte, recordHeader)
	putHeader(b, recordSYN, helloLen(recordSYN)-recordHeader)
	return append(b, magic...)
}()

type nonce [nonceLen]byte

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func putHeader(b []byte, typ byte, n int) {
	binary.BigEndian.PutUint32(b, uint32(typ)<<24|uint32(n))
}

// hello is a SYN or an ACK.
type hello struct {
	typ  byte
	link nonce // the same on both connections of a link
	own  nonce // of this connection
	seen nonce // ACK: the nonce that is acknowledged
}

// record is {magic, link, own, seen in an ACK, crc32c of the record so far}.
func (h hello) record() []byte {
	b := make([]byte, recordHeader, 80)
	putHeader(b, h.typ, helloLen(h.typ)-recordHeader)
	b = append(b, magic...)
	b = append(b, h.link[:]...)
	b = append(b, h.own[:]...)
	if h.typ == recordACK {
		b = append(b, h.seen[:]...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func helloLen(typ byte) int {
	n := recordHeader + len(magic) + 2*nonceLen + crc32.Size
	if typ == recordACK {
		n += nonceLen
	}
	return n
}

// parseHello reads a SYN or ACK at the start of b. need is the length b must
// have before one can tell; it is 0 when there is none at the start of b.
func parseHello(b []byte) (h hello, need int) {
	if len(b) == 0 {
		return h, 1
	}
	typ := b[0]
	if typ != recordSYN && typ != recordACK {
		return h, 0
	}
	n := helloLen(typ)
	prefix := make([]byte, recordHeader, recordHeader+8)
	putHeader(prefix, typ, n-recordHeader)
	prefix = append(prefix, magic...)
	if k := min(len(b), len(prefix)); !bytes.Equal(b[:k], prefix[:k]) {
		return h, 0
	}
	if len(b) < n {
		return h, n
	}
	if crc32.Checksum(b[:n-crc32.Size], castagnoli) != binary.BigEndian.Uint32(b[n-crc32.Size:]) {
		return h, 0
	}
	h.typ = typ
	rest := b[len(prefix):]
	copy(h.link[:], rest)
	copy(h.own[:], rest[nonceLen:])
	if typ == recordACK {
		copy(h.seen[:], rest[2*nonceLen:])
	}
	return h, n
}

func violation(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeProtocol, format, args...)
}
