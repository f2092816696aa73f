package link

import "encoding/binary"

// The header of a yamux frame: version, type, flags (2), stream (4), length (4).
// From the specification in hashicorp/yamux, spec.md.
const (
	muxHeader     = 12
	muxData       = 0
	muxPing       = 2
	muxFlagSYN    = 1
	muxFlagOffset = 2
)

// isDataHeader tells that p is the header of a frame with a body, which yamux
// writes right after it.
func isDataHeader(p []byte) bool {
	return len(p) == muxHeader && p[1] == muxData && binary.BigEndian.Uint32(p[8:]) > 0
}

// muxGuard follows the frames of the peer's multiplexer before yamux sees
// them. It knows whether a frame is incomplete, and refuses what yamux accepts
// at unbounded cost: a ping takes a goroutine each (this protocol has no use
// for them), and a stream may be opened under the other side's numbers.
type muxGuard struct {
	host bool // the peer is the host, whose streams have odd numbers
	head [muxHeader]byte
	have int    // bytes of head
	body uint32 // bytes left of a body
}

// inside tells that a frame has begun and not ended.
func (g *muxGuard) inside() bool { return g.have > 0 || g.body > 0 }

func (g *muxGuard) see(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(uint64(g.body), uint64(len(p)))
			g.body -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(g.head[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < muxHeader {
			return nil
		}
		g.have = 0
		if err := g.frame(); err != nil {
			return err
		}
	}
	return nil
}

func (g *muxGuard) frame() error {
	flags := binary.BigEndian.Uint16(g.head[muxFlagOffset:])
	stream := binary.BigEndian.Uint32(g.head[4:])
	switch {
	case g.head[1] == muxPing:
		return violation("ping of the multiplexer")
	case flags&muxFlagSYN != 0 && (stream%2 == 1) != g.host:
		return violation("stream %d opened by the wrong end", stream)
	case g.head[1] == muxData:
		g.body = binary.BigEndian.Uint32(g.head[8:])
	}
	return nil
}
