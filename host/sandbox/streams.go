package sandbox

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// streamer is a Link that has bulk streams.
type streamer interface {
	OpenStream(context.Context, protocol.Open) (*link.Stream, error)
}

var _ streamer = (*link.Link)(nil)

// OpenStream opens a bulk stream to a running timeline. It waits while the
// timeline is stopped for a capture; a timeline that has ended is
// CodeSandboxStopped.
func (s *Sandbox) OpenStream(ctx context.Context, id protocol.TimelineID, o protocol.Open) (*link.Stream, error) {
	t := s.timeline(id)
	if t == nil {
		return nil, protocol.Errorf(protocol.CodeSandboxStopped, "timeline %s has no running machine", id)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })()
	ss, err := t.awaitRunning(ctx)
	if err != nil {
		return nil, err
	}
	l, ok := ss.link.(streamer)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeNotSupported, "this link has no streams")
	}
	return l.OpenStream(ctx, o)
}
