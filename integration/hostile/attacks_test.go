package hostile_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// flooding is how long floods last before the host asks for a snapshot.
const flooding = 700 * time.Millisecond

func attacks() []attack {
	var all []attack
	all = append(all, silences()...)
	all = append(all, lies()...)
	all = append(all, floods()...)
	all = append(all, bytesOf()...)
	return append(all, atStart()...)
}

// silences are answers that do not come.
func silences() []attack {
	return []attack{
		{name: "prepare is never answered", code: protocol.CodePrepareFailed, guest: func() *guest {
			return &guest{on: func(_ *visit, m protocol.Message) bool { return is[*protocol.Prepare](m) }}
		}},
		{name: "prepare is answered late", code: protocol.CodePrepareFailed, guest: func() *guest {
			return &guest{on: func(_ *visit, m protocol.Message) bool {
				if is[*protocol.Prepare](m) {
					time.Sleep(2 * short.Prepare)
				}
				return false
			}}
		}},
		{name: "silent from prepare on", code: protocol.CodePrepareFailed, stopped: true, guest: func() *guest {
			return deafFrom(func(m protocol.Message) bool { return is[*protocol.Prepare](m) })
		}},
		{name: "quiesced and no end", code: protocol.CodePrepareFailed, guest: func() *guest {
			return &guest{on: func(v *visit, m protocol.Message) bool {
				ack, ok := m.(*protocol.AckPosition)
				if ok {
					v.state = protocol.StateQuiesced
					v.send(context.Background(), &protocol.Quiesced{Freeze: ack.Freeze})
				}
				return ok
			}}
		}},
		{name: "no link after the capture", code: protocol.CodeChildLost, stopped: true, guest: func() *guest {
			return deafFrom(func(m protocol.Message) bool { return is[*protocol.AckPosition](m) })
		}},
		{name: "thaw is never answered", code: protocol.CodeChildLost, stopped: true, guest: func() *guest {
			return &guest{on: func(_ *visit, m protocol.Message) bool {
				th, ok := m.(*protocol.Thaw)
				return ok && th.Freeze > 1
			}}
		}},
		{name: "calls whose outcome is not taken", dwell: flooding, guest: func() *guest {
			return &guest{
				on: func(_ *visit, m protocol.Message) bool { return is[*protocol.Outcome](m) },
				raid: func(ctx context.Context, v *visit) {
					for n := range 10 {
						v.send(ctx, &protocol.Call{Key: v.key(n), Kind: protocol.CallWhoami})
					}
				},
			}
		}, code: "any"},
	}
}

func is[T protocol.Message](m protocol.Message) bool {
	_, ok := m.(T)
	return ok
}

// deafFrom is a guest that answers nothing more and takes no link once it has
// seen the message; that one it answers if it is an AckPosition.
func deafFrom(stop func(protocol.Message) bool) *guest {
	deaf := false
	g := &guest{}
	g.on = func(v *visit, m protocol.Message) bool {
		if deaf = deaf || stop(m); deaf {
			if is[*protocol.AckPosition](m) {
				g.react(context.Background(), v, m)
			}
			return true
		}
		return false
	}
	g.accept = func(ctx context.Context, c *tapped) (*link.Link, error) {
		if deaf {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return link.Accept(ctx, c, link.Options{Stall: stall})
	}
	return g
}

// lies are messages in the wrong place.
func lies() []attack {
	answer := func(to func(protocol.Message) bool, with ...protocol.Message) func() *guest {
		return func() *guest {
			return &guest{on: func(v *visit, m protocol.Message) bool {
				if !to(m) {
					return false
				}
				for _, w := range with {
					v.send(context.Background(), w)
				}
				return true
			}}
		}
	}
	prepare := func(m protocol.Message) bool { return is[*protocol.Prepare](m) }
	thaw := func(m protocol.Message) bool { th, ok := m.(*protocol.Thaw); return ok && th.Freeze > 1 }
	huge := strings.Repeat("\x1b[2J", 200<<10)
	return []attack{
		{name: "prepare failed without a reason", code: protocol.CodePrepareFailed, guest: answerFreeze(func(f protocol.Freeze) protocol.Message {
			return &protocol.PrepareFailed{Freeze: f}
		})},
		{name: "prepare failed with a forged reason", code: protocol.CodePrepareFailed, guest: answerFreeze(func(f protocol.Freeze) protocol.Message {
			return &protocol.PrepareFailed{Freeze: f, Error: &protocol.Error{Code: "disk_full\x1b]0;", Message: huge}}
		})},
		{name: "drained for other freezes", code: protocol.CodePrepareFailed, guest: answer(prepare, &protocol.Drained{Freeze: 1}, &protocol.Drained{Freeze: math.MaxUint64}, &protocol.Quiesced{Freeze: 1})},
		{name: "thawed for other freezes", code: protocol.CodeChildLost, stopped: true, guest: answer(thaw, &protocol.Thawed{Freeze: 1}, &protocol.Thawed{Freeze: math.MaxUint64})},
		{name: "thawed for another timeline", code: protocol.CodeChildLost, stopped: true, guest: func() *guest {
			return &guest{on: func(v *visit, m protocol.Message) bool {
				if !thaw(m) {
					return false
				}
				v.send(context.Background(), &protocol.Thawed{Freeze: m.(*protocol.Thaw).Freeze, Timeline: "tl-aaaaaaaaaaaaaaaa"})
				return true
			}}
		}},
		{name: "quiesced with too many programs", code: protocol.CodeProtocol, guest: quiescedWith(make([]protocol.ExecOffsets, protocol.MaxExecs+1))},
		{name: "quiesced with input beyond all", code: "", guest: quiescedWith([]protocol.ExecOffsets{{ID: "../x", Stdin: math.MaxUint64}, {}})},
		{name: "quiesced without drained", code: "", guest: func() *guest {
			return &guest{on: func(v *visit, m protocol.Message) bool {
				p, ok := m.(*protocol.Prepare)
				if ok {
					v.state, v.freeze = protocol.StateQuiesced, p.Freeze
					v.send(context.Background(), &protocol.Quiesced{Freeze: p.Freeze})
					v.End()
				}
				return ok
			}}
		}},
		{name: "hello of another version", code: protocol.CodeVersionMismatch, stopped: true, guest: helloAfter(func(h *protocol.Hello) protocol.Message {
			h.Version++
			return h
		})},
		{name: "no hello", code: protocol.CodeChildLost, stopped: true, guest: helloAfter(func(*protocol.Hello) protocol.Message { return &protocol.Pong{} })},
		{name: "hello: lost", code: protocol.CodeChildLost, stopped: true, guest: helloAfter(func(h *protocol.Hello) protocol.Message {
			h.State = protocol.StateLost
			return h
		})},
		// It may say what it likes as long as it answers to its thaw.
		{name: "hello: running in a capture", guest: helloAfter(func(h *protocol.Hello) protocol.Message {
			h.State = protocol.StateRunning
			return h
		})},
		{name: "hello of no state", code: "any", stopped: true, dwell: flooding, guest: func() *guest {
			g := &guest{raid: func(_ context.Context, v *visit) { v.Close() }}
			g.hello = func(h *protocol.Hello) protocol.Message {
				if g.links > 1 {
					h.State = "asleep"
				}
				return h
			}
			return g
		}},
		{name: "hello with 100,000 calls", guest: helloAfter(func(h *protocol.Hello) protocol.Message {
			for n := range 100_000 {
				h.Pending = append(h.Pending, protocol.PendingCall{Key: protocol.Key{Timeline: h.Timeline, Sequence: uint64(n)}, Kind: protocol.CallBranch})
			}
			return h
		}), code: "any"},
		{name: "calls of nobody", dwell: flooding, guest: raider(func(ctx context.Context, v *visit) {
			for _, kind := range []protocol.CallKind{protocol.CallSnapshot, protocol.CallBranch, protocol.CallRestore, protocol.CallFinish, protocol.CallAdopt, "dance"} {
				v.send(ctx, &protocol.Call{Kind: kind})
				v.send(ctx, &protocol.Call{Kind: kind, Key: protocol.Key{Timeline: "tl-aaaaaaaaaaaaaaaa", Sequence: 1}})
			}
		}), code: "any"},
		{name: "keys used again", dwell: flooding, guest: raider(func(ctx context.Context, v *visit) {
			for n := 0; v.send(ctx, &protocol.Call{Key: v.key(n % 3), Kind: protocol.CallTree}) == nil; n++ {
			}
		})},
		{name: "arguments of another kind", dwell: flooding, guest: raider(func(ctx context.Context, v *visit) {
			for n, args := range []string{"\xc1", "\x91\x01", "\x81\xa1n\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "\x81\xa1n\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", strings.Repeat("\x91", 100), "\x81\xa2id\xa6../../"} {
				for k, kind := range []protocol.CallKind{protocol.CallBranch, protocol.CallRestore, protocol.CallResults, protocol.CallLLM, protocol.CallSnapshot} {
					v.send(ctx, &protocol.Call{Key: v.key(100*n + k), Kind: kind, Arguments: []byte(args)})
				}
			}
		}), code: "any"},
	}
}

// answerFreeze answers prepare, and runs on.
func answerFreeze(with func(protocol.Freeze) protocol.Message) func() *guest {
	return func() *guest {
		return &guest{on: func(v *visit, m protocol.Message) bool {
			p, ok := m.(*protocol.Prepare)
			if ok {
				v.send(context.Background(), with(p.Freeze))
			}
			return ok
		}}
	}
}

// helloAfter changes hello from the second link on.
func helloAfter(change func(*protocol.Hello) protocol.Message) func() *guest {
	return func() *guest {
		g := &guest{}
		g.hello = func(h *protocol.Hello) protocol.Message {
			if g.links == 1 {
				return h
			}
			return change(h)
		}
		return g
	}
}

func raider(raid func(context.Context, *visit)) func() *guest {
	return func() *guest { return &guest{raid: raid} }
}

// floods are more than a guest is meant to send.
func floods() []attack {
	flood := func(next func(v *visit, n int) protocol.Message) func() *guest {
		return raider(func(ctx context.Context, v *visit) {
			for n := 0; v.send(ctx, next(v, n)) == nil; n++ {
			}
		})
	}
	return []attack{
		{name: "flood of calls", dwell: flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message {
			return &protocol.Call{Key: v.key(n), Kind: protocol.CallWhoami}
		})},
		{name: "flood of waiting calls", dwell: flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message {
			return &protocol.Call{Key: v.key(n), Kind: protocol.CallResults, Arguments: []byte("\x81\xa6branch\xa2br")}
		})},
		{name: "flood of snapshots", dwell: flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message {
			return &protocol.Call{Key: v.key(n), Kind: protocol.CallSnapshot, Arguments: []byte("\x80")}
		})},
		{name: "flood of acknowledgements", dwell: flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message {
			return []protocol.Message{&protocol.OutcomeAck{Key: v.key(n)}, &protocol.Thawed{Freeze: protocol.Freeze(n)}, &protocol.Attached{Epoch: uint64(n)},
				&protocol.CallGone{Key: v.key(n)}, &protocol.Pong{N: uint64(n)}, &protocol.Drained{Freeze: protocol.Freeze(n)}}[n%6]
		})},
		{name: "flood of exits", dwell: flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message {
			return &protocol.CallerExited{Key: v.key(n), Stderr: make([]byte, 100<<10)}
		})},
		{name: "flood of prepare's answers", code: "any", guest: func() *guest {
			return &guest{on: func(v *visit, m protocol.Message) bool {
				p, ok := m.(*protocol.Prepare)
				for n := 0; ok && n < 1000; n++ {
					v.send(context.Background(), &protocol.Drained{Freeze: p.Freeze, Position: protocol.Position{Sequence: uint64(n)}})
				}
				return ok
			}}
		}},
		{name: "calls with 60 MiB each", dwell: flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message {
			return &protocol.Call{Key: v.key(n), Kind: protocol.CallLLM, Arguments: make([]byte, 60<<20)}
		})},
		{name: "calls with 1 MiB each", dwell: flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message {
			return &protocol.Call{Key: v.key(n), Kind: protocol.CallLLM, Arguments: make([]byte, 1<<20-1<<10)}
		})},
		{name: "everything at once", dwell: 2 * flooding, code: "any", guest: flood(func(v *visit, n int) protocol.Message { return anything(v, n) })},
	}
}

// anything is one of all the messages above, by number.
func anything(v *visit, n int) protocol.Message {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	kinds := []protocol.CallKind{protocol.CallSnapshot, protocol.CallRestore, protocol.CallBranch, protocol.CallResults, protocol.CallTree, protocol.CallBudget, protocol.CallFinish}
	key := v.key(r.IntN(300))
	switch r.IntN(9) {
	case 0:
		return &protocol.OutcomeAck{Key: key}
	case 1:
		return &protocol.CallGone{Key: key}
	case 2:
		return &protocol.Thawed{Freeze: protocol.Freeze(r.IntN(5)), Timeline: v.timeline}
	case 3:
		return &protocol.Quiesced{Freeze: protocol.Freeze(r.IntN(5))}
	case 4:
		return &protocol.Drained{Freeze: protocol.Freeze(r.IntN(5))}
	case 5:
		return &protocol.Hello{Version: protocol.Version, State: protocol.StateQuiesced}
	case 6:
		return &protocol.CallerExited{Key: key}
	default:
		return &protocol.Call{Key: key, Kind: kinds[r.IntN(len(kinds))], Arguments: []byte("\x81\xa1n\x02")}
	}
}

// quiescedWith tells of programs.
func quiescedWith(execs []protocol.ExecOffsets) func() *guest {
	return func() *guest {
		return &guest{on: func(v *visit, m protocol.Message) bool {
			ack, ok := m.(*protocol.AckPosition)
			if ok {
				v.state = protocol.StateQuiesced
				v.send(context.Background(), &protocol.Quiesced{Freeze: ack.Freeze, Execs: execs})
				v.End()
			}
			return ok
		}}
	}
}

// bytesOf are attacks below the messages.
func bytesOf() []attack {
	raw := func(name string, body []byte) func() *guest {
		return raider(func(ctx context.Context, v *visit) { v.send(ctx, forged{name, body}) })
	}
	all := []attack{
		{name: "unknown message", guest: raw("dance", []byte("\x80"))},
		{name: "malformed message", guest: raw("call", []byte("\x81\xa3key\xc1"))},
		{name: "deep nesting", guest: raw("call", []byte(strings.Repeat("\x91", 1<<18)+"\xc0"))},
		{name: "counts beyond the frame", guest: raw("hello", []byte("\x81\xa7pending\xdd\xff\xff\xff\xff"))},
		{name: "many small values", guest: raw("hello", append([]byte("\x81\xa7pending\xdd\x00\x0f\x00\x00"), bytes.Repeat([]byte{0x80}, 0xf0000)...))},
		// Whether the snapshot stands depends on whether the first of it was
		// read together with END.
		{name: "data after end", code: "", or: protocol.CodePrepareFailed, guest: func() *guest {
			return &guest{on: func(v *visit, m protocol.Message) bool {
				if !is[*protocol.AckPosition](m) {
					return false
				}
				v.react(context.Background(), v, m)
				for _, ch := range []link.Channel{link.Control, link.Bulk} {
					v.carrier.raw(ch).Write(bytes.Repeat([]byte("D\x00\x00\x04junk"), 1000))
				}
				return true
			}}
		}},
		{name: "too many streams", dwell: flooding, code: "any", guest: raider(func(ctx context.Context, v *visit) {
			for {
				if _, err := v.OpenStream(ctx, protocol.Open{Op: protocol.OpExec}); err != nil && protocol.CodeOf(err) != protocol.CodeBusy {
					return
				}
				time.Sleep(time.Millisecond)
			}
		})},
		{name: "a long message that stops", dwell: flooding, code: "any", guest: raider(func(ctx context.Context, v *visit) {
			st, err := v.OpenStream(ctx, protocol.Open{Op: protocol.OpMessage, Message: 1})
			for err == nil {
				err = st.Send(&protocol.Piece{Data: make([]byte, 1<<20)})
			}
		})},
		{name: "slow trickle", dwell: flooding, code: "any", guest: func() *guest {
			return &guest{accept: func(ctx context.Context, c *tapped) (*link.Link, error) {
				c.trick = func(conn net.Conn) net.Conn { return &trickle{Conn: conn} }
				return link.Accept(ctx, c, link.Options{Stall: stall})
			}}
		}, start: "any"},
	}
	for i := range all[:5] {
		all[i].code, all[i].dwell = "any", flooding
	}
	return all
}

// trickle writes the first kilobyte at once and then a byte at a time.
type trickle struct {
	net.Conn
	sent int
}

func (c *trickle) Write(b []byte) (int, error) {
	if c.sent += len(b); c.sent < 1<<10 {
		return c.Conn.Write(b)
	}
	for i := range b {
		if _, err := c.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return len(b), nil
}

// atStart are guests that are never taken in.
func atStart() []attack {
	junk := func(write func(io.Writer)) func() *guest {
		return func() *guest {
			return &guest{accept: func(ctx context.Context, c *tapped) (*link.Link, error) {
				control, err := c.Open(ctx, link.Control)
				if err != nil {
					return nil, err
				}
				bulk, err := c.Open(ctx, link.Bulk)
				if err != nil {
					control.Close()
					return nil, err
				}
				defer bulk.Close()
				defer control.Close()
				defer context.AfterFunc(ctx, func() { control.Close() })()
				write(control)
				return nil, fmt.Errorf("junk was sent")
			}}
		}
	}
	return []attack{
		{name: "no link ever", start: protocol.CodeUnavailable, guest: func() *guest {
			return &guest{accept: func(ctx context.Context, _ *tapped) (*link.Link, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}
		}},
		{name: "junk for a handshake", start: "any", guest: junk(func(w io.Writer) {
			for b := bytes.Repeat([]byte("S\x00\x00\x30\x8bRATN\r\n"), 4<<10); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		})},
		{name: "loaded and running", start: protocol.CodeProtocol, guest: func() *guest {
			return &guest{hello: func(h *protocol.Hello) protocol.Message { h.State = protocol.StateRunning; return h }}
		}},
		{name: "loaded with another freeze", start: protocol.CodeProtocol, guest: func() *guest {
			return &guest{hello: func(h *protocol.Hello) protocol.Message { h.Freeze++; return h }}
		}},
		{name: "loaded with another version", start: protocol.CodeVersionMismatch, guest: func() *guest {
			return &guest{hello: func(h *protocol.Hello) protocol.Message { h.Version--; return h }}
		}},
	}
}
