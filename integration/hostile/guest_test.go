package hostile_test

import (
	"context"
	"sync"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// guest is the guest's end of a machine's links. Without hooks it is honest.
type guest struct {
	// hello may change the first message of a link, or replace it.
	hello func(*protocol.Hello) protocol.Message
	// on is asked first about each message; true: nothing else is done.
	on func(*visit, protocol.Message) bool
	// raid runs beside each link to the running guest.
	raid func(context.Context, *visit)
	// accept makes a link; nil: link.Accept.
	accept func(context.Context, *tapped) (*link.Link, error)

	state    protocol.State
	freeze   protocol.Freeze
	timeline protocol.TimelineID
	links    int
}

// visit is one link.
type visit struct {
	*guest
	*link.Link
	carrier *tapped
}

func (v *visit) send(ctx context.Context, m protocol.Message) error { return v.Send(ctx, m) }

// run serves one link after another.
func (g *guest) run(ctx context.Context, c *tapped) {
	accept := g.accept
	if accept == nil {
		accept = func(ctx context.Context, c *tapped) (*link.Link, error) {
			return link.Accept(ctx, c, link.Options{Stall: stall})
		}
	}
	for ctx.Err() == nil {
		l, err := accept(ctx, c)
		if err != nil {
			continue
		}
		g.links++
		g.serve(ctx, &visit{g, l, c})
		l.Close()
	}
}

func (g *guest) serve(ctx context.Context, v *visit) {
	var raids sync.WaitGroup
	defer raids.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { v.Close() })()
	h := &protocol.Hello{Version: protocol.Version, Release: "hostile", Timeline: g.timeline, Start: 1, State: g.state, Freeze: g.freeze}
	var first protocol.Message = h
	if g.hello != nil {
		first = g.hello(h)
	}
	if v.send(ctx, first) != nil {
		return
	}
	raiding := false
	for {
		m, err := v.Receive(ctx)
		if err != nil {
			return
		}
		if g.on != nil && g.on(v, m) {
			continue
		}
		if g.react(ctx, v, m) != nil {
			return
		}
		if g.state == protocol.StateRunning && !raiding && g.raid != nil {
			raiding = true
			raids.Go(func() { g.raid(ctx, v) })
		}
	}
}

// react does what agentd does.
func (g *guest) react(ctx context.Context, v *visit, m protocol.Message) error {
	switch m := m.(type) {
	case *protocol.Prepare:
		g.state, g.freeze = protocol.StatePreparing, m.Freeze
		return v.send(ctx, &protocol.Drained{Freeze: m.Freeze})
	case *protocol.Abort:
		g.state = protocol.StateRunning
		return v.send(ctx, &protocol.PrepareFailed{Freeze: m.Freeze, Error: m.Error})
	case *protocol.AckPosition:
		g.state = protocol.StateQuiesced
		if err := v.send(ctx, &protocol.Quiesced{Freeze: m.Freeze, Position: m.Position}); err != nil {
			return err
		}
		return v.End()
	case *protocol.Thaw:
		if m.Freeze != g.freeze {
			return nil
		}
		g.state, g.timeline = protocol.StateRunning, m.Timeline
		return v.send(ctx, &protocol.Thawed{Freeze: m.Freeze, Timeline: m.Timeline})
	case *protocol.Attach:
		return v.send(ctx, &protocol.Attached{Epoch: m.Epoch})
	case *protocol.Outcome:
		return v.send(ctx, &protocol.OutcomeAck{Key: m.Key})
	}
	return nil
}

// key numbers calls of the guest's timeline.
func (v *visit) key(n int) protocol.Key {
	return protocol.Key{Timeline: v.timeline, Start: 1, Sequence: uint64(n)}
}

// forged is a message with any bytes as its body.
type forged struct {
	name string
	body []byte
}

var _ msgpack.CustomEncoder = forged{}

func (f forged) Type() string { return f.name }

func (f forged) EncodeMsgpack(e *msgpack.Encoder) error {
	_, err := e.Writer().Write(f.body)
	return err
}
