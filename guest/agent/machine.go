package agent

import (
	"cmp"
	"slices"

	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

// Machine is the guest's side of the pause protocol: the state, the freeze
// numbers and the table of pending calls, which is the one judge of exactly
// once. It does no I/O and is not safe for concurrent use.
//
// Each method is an event; the effects it returns are to be carried out in
// order. A message that no rule accepts has no effect but a hello, which says
// how things stand.
type Machine struct {
	release string
	start   uint64
	rec     keep.Record
	state   protocol.State
	prep    preparing // while StatePreparing
	linked  bool      // hello was sent on the present link

	sequence uint64
	calls    map[protocol.Key]*call
	gone     []protocol.Key         // given up, not yet told
	exited   *protocol.CallerExited // this timeline's program has ended
	told     bool                   // exited was sent on the present link
	held     []*protocol.Outcome    // came while preparing
	event    protocol.ResumeEvent
}

// preparing is one attempt to quiesce.
type preparing struct {
	freeze  protocol.Freeze // the newest that was asked for
	key     protocol.Key
	attempt protocol.Freeze // the Stop that is under way or has ended
	stopped bool            // users are frozen, drained was sent
	abort   *protocol.Error // undo as soon as the Stop has ended
}

type call struct {
	kind   protocol.CallKind
	args   []byte // dropped once sent
	caller Caller
	sent   bool
	early  bool   // the host must have all output first
	count  uint64 // thaws before the call
}

// Caller is a program that waits for an outcome.
type Caller interface {
	// Watch names the process whose end ends a timeline made by this call.
	Watch() (pid int, started uint64)
}

// MachineOptions says where a Machine begins.
type MachineOptions struct {
	Release string
	Start   uint64
	Record  keep.Record
	// Lost: a former worker died while the users were frozen.
	Lost bool
}

// NewMachine makes a machine that runs, or is lost.
func NewMachine(opt MachineOptions) *Machine {
	m := &Machine{
		release: opt.Release, start: opt.Start, rec: opt.Record,
		state: protocol.StateRunning,
		calls: map[protocol.Key]*call{},
	}
	if opt.Lost {
		m.state = protocol.StateLost
	}
	m.event = m.resumeEvent(0, "")
	return m
}

// State is the present state.
func (m *Machine) State() protocol.State { return m.state }

// Count is the number of thaws so far.
func (m *Machine) Count() uint64 { return m.rec.Count }

// Event is what the newest thaw told its subscribers; its Count is 0 before
// the first.
func (m *Machine) Event() protocol.ResumeEvent { return m.event }

// Watched is the program whose end ends this timeline, nil if none.
func (m *Machine) Watched() *keep.Watch { return m.rec.Watch }

// Hello says how things stand. It lists the calls that the host may know of;
// those it cannot know are sent to it once the machine runs.
func (m *Machine) Hello() *protocol.Hello {
	h := &protocol.Hello{
		Version: protocol.Version, Release: m.release,
		Timeline: m.rec.Timeline, Start: m.start, State: m.state, Freeze: m.rec.Seen,
		Pending: []protocol.PendingCall{},
	}
	for _, key := range m.keys() {
		if c := m.calls[key]; c.sent {
			h.Pending = append(h.Pending, protocol.PendingCall{Key: key, Kind: c.kind})
		}
	}
	return h
}

// LinkUp begins a link.
func (m *Machine) LinkUp() []Effect {
	m.linked, m.told = true, false
	return append([]Effect{Send{m.Hello()}}, m.flush()...)
}

// LinkDown ends a link, in order or not.
func (m *Machine) LinkDown() []Effect {
	m.linked = false
	m.held = nil
	if m.state != protocol.StatePreparing {
		return nil
	}
	return m.undo(protocol.Errorf(protocol.CodePrepareFailed, "the link to the host was lost while preparing freeze %d", m.prep.freeze))
}

// Receive takes a message of the host.
func (m *Machine) Receive(msg protocol.Message) []Effect {
	switch msg := msg.(type) {
	case *protocol.Prepare:
		return m.prepare(msg)
	case *protocol.AckPosition:
		return m.acknowledged(msg)
	case *protocol.Abort:
		return m.aborted(msg)
	case *protocol.Thaw:
		return m.thaw(msg)
	case *protocol.Outcome:
		return m.outcome(msg)
	case *protocol.Attach:
		return m.attach(msg)
	case *protocol.Ping:
		return []Effect{Send{&protocol.Pong{N: msg.N}}}
	}
	return m.refuse()
}

func (m *Machine) refuse() []Effect { return []Effect{Send{m.Hello()}} }

// outcome settles a pending call while running. One that comes while preparing
// is taken when that has ended, as if it had been longer on its way.
func (m *Machine) outcome(o *protocol.Outcome) []Effect {
	switch m.state {
	case protocol.StateRunning:
		return append(m.settle(o.Key, *o), Send{&protocol.OutcomeAck{Key: o.Key}})
	case protocol.StatePreparing:
		m.held = append(m.held, o)
		return nil
	}
	return m.refuse()
}

// settle answers a call if it is pending.
func (m *Machine) settle(key protocol.Key, o protocol.Outcome) []Effect {
	c, ok := m.calls[key]
	if !ok {
		return nil
	}
	delete(m.calls, key)
	o.Key = key
	return []Effect{Answer{Caller: c.caller, Outcome: o, Resumed: m.rec.Count > c.count}}
}

func (m *Machine) attach(a *protocol.Attach) []Effect {
	fresh := m.rec.Timeline == ""
	if m.state != protocol.StateRunning && m.state != protocol.StatePreparing || !fresh && a.Timeline != m.rec.Timeline {
		return m.refuse()
	}
	m.rec.Timeline = a.Timeline
	takeEpoch(&m.rec, a.Stream, a.Epoch)
	return []Effect{Keep{m.rec}, SetTime{a}, Send{&protocol.Attached{Epoch: m.rec.Epoch}}}
}

// takeEpoch takes a stream's epoch only if it is newer, so that a delayed
// message cannot bring an old one back.
func takeEpoch(r *keep.Record, stream protocol.StreamID, epoch uint64) {
	if stream != r.Stream || epoch > r.Epoch {
		r.Stream, r.Epoch = stream, epoch
	}
}

// Open enters a call into the table.
func (m *Machine) Open(kind protocol.CallKind, args []byte, caller Caller) (protocol.Key, []Effect, *protocol.Error) {
	if m.state == protocol.StateLost {
		return protocol.Key{}, nil, protocol.Errorf(protocol.CodeAgentRestarted, "the agent died during a capture; the host ends this machine")
	}
	if len(m.calls) >= protocol.MaxPendingCalls {
		return protocol.Key{}, nil, protocol.Errorf(protocol.CodeBusy, "%d calls are pending already, no more are taken", len(m.calls))
	}
	m.sequence++
	key := protocol.Key{Timeline: m.rec.Timeline, Start: m.start, Sequence: m.sequence}
	c := &call{kind: kind, args: args, caller: caller, count: m.rec.Count, early: endsTimeline(kind)}
	m.calls[key] = c
	if c.early {
		return key, []Effect{Deliver{key}}, nil
	}
	return key, m.flush(), nil
}

// endsTimeline tells whether the host ends the machine at a call, and with it
// the output that it has not taken.
func endsTimeline(kind protocol.CallKind) bool {
	return kind == protocol.CallFinish || kind == protocol.CallRestore || kind == protocol.CallAdopt
}

// Delivered ends a Deliver: the call may be sent.
func (m *Machine) Delivered(key protocol.Key) []Effect {
	if c := m.calls[key]; c != nil {
		c.early = false
	}
	return m.flush()
}

// Gone removes a call whose caller has given it up.
func (m *Machine) Gone(key protocol.Key) []Effect {
	c, ok := m.calls[key]
	if !ok {
		return nil
	}
	delete(m.calls, key)
	if c.sent {
		m.gone = append(m.gone, key)
	}
	return m.flush()
}

// Exited says that the watched program has ended.
func (m *Machine) Exited(w keep.Watch, status protocol.ExitStatus, stderr []byte) []Effect {
	if m.rec.Watch == nil || *m.rec.Watch != w || m.exited != nil {
		return nil
	}
	m.exited = &protocol.CallerExited{Key: w.Key, Status: status, Stderr: stderr}
	return m.flush()
}

// flush sends what had to wait for a link and for the users to run. A call is
// sent once: whether the host has it after a lost link, the host alone knows.
func (m *Machine) flush() []Effect {
	if !m.linked || m.state != protocol.StateRunning {
		return nil
	}
	var out []Effect
	for _, key := range m.keys() {
		if c := m.calls[key]; !c.sent && !c.early {
			out = append(out, Send{&protocol.Call{Key: key, Kind: c.kind, Arguments: c.args}})
			c.sent, c.args = true, nil
		}
	}
	for _, key := range m.gone {
		out = append(out, Send{&protocol.CallGone{Key: key}})
	}
	m.gone = nil
	if m.exited != nil && !m.told {
		// There is no acknowledgement, so it is sent on each link.
		m.told = true
		out = append(out, Send{m.exited})
	}
	return out
}

// keys lists the pending calls in the order in which they were made.
func (m *Machine) keys() []protocol.Key {
	keys := make([]protocol.Key, 0, len(m.calls))
	for key := range m.calls {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b protocol.Key) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return keys
}
