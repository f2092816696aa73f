package agent_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/guest/agent"
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

// world is what a machine's effects do, and checks them against the rules of
// the pause protocol.
type world struct {
	*rapid.T
	m        *agent.Machine
	stopping protocol.Freeze // the Stop under way, 0 if none
	frozen   bool
	linked   bool
	ended    bool // nothing may be written to this link any more
	kept     keep.Record
	pending  map[protocol.Key]bool
	acked    protocol.Freeze // newest ack-position sent
	fixing   bool
	early    []protocol.Key // may not be sent yet
}

func (w *world) apply(effects []agent.Effect) {
	for i, e := range effects {
		switch e := e.(type) {
		case agent.Keep:
			w.kept = e.Record
		case agent.Stop:
			if w.stopping != 0 || w.frozen {
				w.Fatalf("stop %d while stopping %d, frozen %v", e.Freeze, w.stopping, w.frozen)
			}
			if w.kept.Seen != e.Freeze {
				w.Fatalf("stop %d before PID 1 knows of it (%d)", e.Freeze, w.kept.Seen)
			}
			w.stopping = e.Freeze
		case agent.Cancel:
			if w.stopping == 0 {
				w.Fatal("cancel without a stop")
			}
		case agent.Resume:
			if !w.frozen {
				w.Fatal("resume of users that run")
			}
			w.frozen = false
		case agent.Send:
			if w.ended && w.linked {
				continue // dropped by the outbox
			}
			if c, ok := e.Message.(*protocol.Call); ok && slices.Contains(w.early, c.Key) {
				w.Fatalf("call %v was sent before the output", c.Key)
			}
			if q, ok := e.Message.(*protocol.Quiesced); ok {
				if _, next := effects[i+1].(agent.End); !next || q.Freeze != w.acked || !w.frozen || w.m.State() != protocol.StateQuiesced {
					w.Fatalf("quiesced %d: acked %d, frozen %v, state %s", q.Freeze, w.acked, w.frozen, w.m.State())
				}
			}
		case agent.Deliver:
			w.early = append(w.early, e.Key)
		case agent.End:
			w.ended = true
		case agent.Answer:
			if !w.pending[e.Outcome.Key] {
				w.Fatalf("call %v was answered twice, or never made", e.Outcome.Key)
			}
			delete(w.pending, e.Outcome.Key)
		case agent.Fix:
			if !w.frozen || w.kept.Timeline != e.Thaw.Timeline || w.kept.Thawed != e.Thaw.Freeze {
				w.Fatalf("fix: frozen %v, kept %+v", w.frozen, w.kept)
			}
			w.fixing = true
			if rapid.IntRange(0, 9).Draw(w.T, "fix fails") == 0 {
				w.apply(w.m.NotFixed())
			} else {
				w.apply(w.m.Fixed(e.Thaw))
			}
			w.fixing = false
		}
	}
	if w.fixing {
		return
	}
	switch w.m.State() {
	case protocol.StateRunning:
		if w.frozen || w.stopping != 0 {
			w.Fatalf("running, but frozen %v, stopping %d", w.frozen, w.stopping)
		}
	case protocol.StateQuiesced:
		if !w.frozen {
			w.Fatal("quiesced, but users run")
		}
	}
}

func (w *world) key() protocol.Key {
	keys := []protocol.Key{{}, {Timeline: "tl-x", Start: 1, Sequence: 1}}
	for _, p := range w.m.Hello().Pending {
		keys = append(keys, p.Key)
	}
	return rapid.SampledFrom(keys).Draw(w.T, "key")
}

func (w *world) freeze() protocol.Freeze {
	seen := uint64(w.m.Hello().Freeze)
	return protocol.Freeze(rapid.Uint64Range(max(seen, 1)-1, seen+2).Draw(w.T, "freeze"))
}

func (w *world) timeline() protocol.TimelineID {
	return rapid.SampledFrom([]protocol.TimelineID{w.m.Hello().Timeline, "tl-1", "tl-2"}).Draw(w.T, "timeline")
}

func (w *world) receive(m protocol.Message) {
	if w.linked && !w.ended || w.m.State() == protocol.StateQuiesced && w.linked {
		w.apply(w.m.Receive(m))
	}
}

func TestMachineKeepsTheRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{T: t, pending: map[protocol.Key]bool{}, m: agent.NewMachine(agent.MachineOptions{Start: 1, Record: keep.Record{Timeline: parent}})}
		t.Repeat(map[string]func(*rapid.T){
			"link up": func(*rapid.T) {
				if !w.linked {
					w.linked, w.ended = true, false
					w.apply(w.m.LinkUp())
				}
			},
			"link down": func(*rapid.T) {
				if w.linked {
					w.linked = false
					w.apply(w.m.LinkDown())
				}
			},
			"open": func(t *rapid.T) {
				kind := rapid.SampledFrom([]protocol.CallKind{protocol.CallTree, protocol.CallFinish, protocol.CallRestore}).Draw(t, "kind")
				key, effects, err := w.m.Open(kind, nil, who(1))
				if err == nil {
					w.pending[key] = true
				}
				w.apply(effects)
			},
			"delivered": func(t *rapid.T) {
				if len(w.early) > 0 {
					key := w.early[0]
					w.early = w.early[1:]
					w.apply(w.m.Delivered(key))
				}
			},
			"gone": func(t *rapid.T) {
				if w.m.State() == protocol.StateQuiesced {
					return // users are frozen
				}
				key := w.key()
				delete(w.pending, key)
				w.apply(w.m.Gone(key))
			},
			"prepare": func(*rapid.T) { w.receive(&protocol.Prepare{Freeze: w.freeze(), Key: w.key()}) },
			"stopped": func(t *rapid.T) {
				if f := w.stopping; f != 0 {
					w.stopping = 0
					var err error
					if rapid.Bool().Draw(t, "stop fails") {
						err = errors.New("users do not freeze")
					}
					w.frozen = err == nil
					w.apply(w.m.Stopped(f, protocol.Position{}, err))
				}
			},
			"ack":      func(*rapid.T) { w.acked = w.freeze(); w.receive(&protocol.AckPosition{Freeze: w.acked}) },
			"abort":    func(*rapid.T) { w.receive(&protocol.Abort{Freeze: w.freeze()}) },
			"deadline": func(*rapid.T) { w.apply(w.m.Deadline(w.freeze())) },
			"outcome":  func(*rapid.T) { w.receive(&protocol.Outcome{Key: w.key()}) },
			"attach":   func(*rapid.T) { w.receive(&protocol.Attach{Timeline: w.timeline(), Epoch: 1}) },
			"thaw": func(t *rapid.T) {
				before := w.m.Hello()
				th := thaw(w.freeze(), w.timeline(), w.key(), nil)
				if rapid.Bool().Draw(t, "with outcome") {
					th.Outcome = &protocol.Outcome{}
				}
				w.receive(th)
				after := w.m.Hello()
				if before.State == protocol.StateQuiesced && after.State == protocol.StateRunning {
					if th.Freeze != before.Freeze {
						t.Fatalf("freeze %d was ended by a thaw of %d", before.Freeze, th.Freeze)
					}
					if after.Timeline != before.Timeline && len(w.pending) != 0 {
						t.Fatalf("a copy has %d calls of its original pending", len(w.pending))
					}
				}
			},
			"": func(t *rapid.T) {
				if n := len(w.m.Hello().Pending); n > len(w.pending) {
					t.Fatalf("hello lists %d calls of %d", n, len(w.pending))
				}
			},
		})
	})
}
