package agent

import (
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

// thaw ends the freeze it names, and nothing else does. PID 1 hears of it
// first; then the machine gets its time, entropy and identity, and only when
// those are right does Fixed let the users run.
func (m *Machine) thaw(t *protocol.Thaw) []Effect {
	switch {
	case m.state == protocol.StateQuiesced && t.Freeze == m.rec.Seen:
		return []Effect{Keep{m.thawed(t)}, Fix{Thaw: t, NewTimeline: t.Timeline != m.rec.Timeline}}
	case m.state == protocol.StateRunning && m.isThawed(t):
		return m.repeated(t)
	}
	return m.refuse()
}

// isThawed tells whether t is the thaw by which this machine runs. Before the
// first there is none.
func (m *Machine) isThawed(t *protocol.Thaw) bool {
	return m.rec.Thawed != 0 && t.Freeze == m.rec.Thawed && t.Timeline == m.rec.Timeline && t.Incarnation == m.rec.Incarnation
}

// repeated answers a thaw that came again because its answer was lost.
func (m *Machine) repeated(t *protocol.Thaw) []Effect {
	takeEpoch(&m.rec, t.Stream, t.Epoch)
	out := []Effect{Keep{m.rec}}
	if t.Outcome != nil {
		out = append(out, m.settle(t.Key, *t.Outcome)...)
	}
	return append(out, Send{&protocol.Thawed{Freeze: t.Freeze, Timeline: t.Timeline}})
}

// thawed is the record as it stands after t.
func (m *Machine) thawed(t *protocol.Thaw) keep.Record {
	r := m.rec
	r.Thawed, r.Incarnation = t.Freeze, t.Incarnation
	r.Identity = t.Identity
	r.Count++
	takeEpoch(&r, t.Stream, t.Epoch)
	if t.Timeline == r.Timeline {
		return r
	}
	r.Timeline = t.Timeline
	r.Seen = 0 // freeze numbers are counted per timeline
	// A thaw that names no call (an operator's) leaves the program that was
	// watched when the machine was captured.
	if !t.Key.IsZero() {
		r.Watch = m.watchOf(t.Key)
	}
	return r
}

// watchOf names the program that made a call, with pid 0 if it is gone; nil if
// it cannot be watched, being in another pid namespace.
func (m *Machine) watchOf(key protocol.Key) *keep.Watch {
	w := &keep.Watch{Key: key}
	if c := m.calls[key]; c != nil {
		if w.PID, w.Started = c.caller.Watch(); w.PID == 0 {
			return nil
		}
	}
	return w
}

// NotFixed says that time, entropy or identity could not be set: the machine
// stays quiesced, since user code must not run without them.
func (m *Machine) NotFixed() []Effect { return m.refuse() }

// Fixed says that the machine has its new time and identity; the users run.
func (m *Machine) Fixed(t *protocol.Thaw) []Effect {
	isNew := t.Timeline != m.rec.Timeline
	m.rec = m.thawed(t)
	m.event = m.resumeEvent(t.Slept, t.Reason)
	m.state, m.prep = protocol.StateRunning, preparing{}

	var out []Effect
	if t.Outcome != nil {
		out = append(out, m.settle(t.Key, *t.Outcome)...)
	}
	if isNew {
		m.exited, m.gone, m.told = nil, nil, false
		for _, key := range m.keys() {
			out = append(out, m.settle(key, protocol.Outcome{Error: protocol.Errorf(protocol.CodeInterruptedByFork,
				"timeline %s is a copy of one in which this call was pending", t.Timeline)})...)
		}
		out = append(out, Observe{m.rec.Watch})
	}
	out = append(out, Notify{m.event}, Resume{}, Send{&protocol.Thawed{Freeze: t.Freeze, Timeline: t.Timeline}})
	return append(out, m.running()...)
}

func (m *Machine) resumeEvent(slept int64, reason protocol.ResumeReason) protocol.ResumeEvent {
	return protocol.ResumeEvent{
		Reason: reason, Timeline: m.rec.Timeline, Node: m.rec.Identity.Node,
		Slept: slept, Seed: m.rec.Identity.Seed, Count: m.rec.Count,
	}
}
