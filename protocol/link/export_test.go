package link

import (
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"strings"
)

// FindPort is for the test of the search in sysfs.
var FindPort = findPort

// Sizes for tests that speak records.
const (
	MaxRecord  = maxRecord
	MaxDiscard = maxDiscard
)

// Greet performs the handshakes of one end and hands out the raw connections,
// for peers that then break the rules.
func Greet(ctx context.Context, c Carrier, host bool) (control, bulk net.Conn, err error) {
	p, err := establish(ctx, c, Options{host: host})
	if err != nil {
		return nil, nil, err
	}
	<-p.control.ready
	<-p.bulk.ready
	return p.control.raw, p.bulk.raw, nil
}

// Record encodes one record.
func Record(typ byte, payload []byte) []byte {
	b := make([]byte, recordHeader, recordHeader+len(payload))
	putHeader(b, typ, len(payload))
	return append(b, payload...)
}

// SYN and ACK encode records of a handshake.
func SYN(link, own byte) []byte {
	return hello{typ: recordSYN, link: nonce{link}, own: nonce{own}}.record()
}

// ACK acknowledges a nonce.
func ACK(link, own, seen byte) []byte {
	return hello{typ: recordACK, link: nonce{link}, own: nonce{own}, seen: nonce{seen}}.record()
}

// RecordTable is what docs/PROTOCOL.md must say of records.
func RecordTable() string {
	var b strings.Builder
	hello := fmt.Sprintf("magic (%d), link (%d), own nonce (%d), ", len(magic), nonceLen, nonceLen)
	b.WriteString("| type | byte | payload |\n| --- | --- | --- |\n")
	fmt.Fprintf(&b, "| SYN | `%#02x` | %scrc32c (%d) |\n", recordSYN, hello, crc32.Size)
	fmt.Fprintf(&b, "| ACK | `%#02x` | %sseen nonce (%d), crc32c (%d) |\n", recordACK, hello, nonceLen, crc32.Size)
	fmt.Fprintf(&b, "| DATA | `%#02x` | 1 to %d bytes of the multiplexer |\n", recordDATA, maxRecord)
	fmt.Fprintf(&b, "| END | `%#02x` | none |\n\n", recordEND)
	fmt.Fprintf(&b, "The magic is `% x`. At most %d bytes may come before the handshake is over.\n", magic, maxDiscard)
	return b.String()
}
