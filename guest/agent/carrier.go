package agent

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// Carrier accepts links that c carries.
func Carrier(c link.Carrier, opt link.Options) Accept {
	return func(ctx context.Context) (Link, error) {
		l, err := link.Accept(ctx, c, opt)
		if err != nil {
			return nil, err
		}
		return carried{l}, nil
	}
}

type carried struct{ *link.Link }

var _ Stream = (*link.Stream)(nil)

func (c carried) AcceptStream(ctx context.Context) (protocol.Open, Stream, error) {
	open, s, err := c.Link.AcceptStream(ctx)
	if err != nil {
		return protocol.Open{}, nil, err
	}
	return open, s, nil
}
