package agent

import "github.com/ratoon-project/ratoon/protocol"

// prepare begins a freeze, or replaces an older one that is being prepared.
func (m *Machine) prepare(p *protocol.Prepare) []Effect {
	if p.Freeze <= m.rec.Seen {
		return m.refuse()
	}
	switch m.state {
	case protocol.StateRunning:
		m.state = protocol.StatePreparing
		m.rec.Seen = p.Freeze
		m.prep = preparing{freeze: p.Freeze, key: p.Key, attempt: p.Freeze}
		return []Effect{Keep{m.rec}, Arm{p.Freeze}, Stop{p.Freeze}}
	case protocol.StatePreparing:
		m.rec.Seen = p.Freeze
		out := []Effect{Keep{m.rec}, Arm{p.Freeze}}
		if m.prep.abort != nil { // its Stop has not ended yet
			out = append(out, m.failed(m.prep, m.prep.abort)...)
		}
		m.prep.freeze, m.prep.key, m.prep.abort = p.Freeze, p.Key, nil
		if !m.prep.stopped {
			return append(out, Cancel{})
		}
		return append(append(out, Resume{}), m.again()...)
	}
	return m.refuse()
}

// again begins the newest freeze that was asked for; the users run.
func (m *Machine) again() []Effect {
	m.prep.attempt, m.prep.stopped = m.prep.freeze, false
	return []Effect{Stop{m.prep.attempt}}
}

// Stopped ends a Stop: users and participants are stopped up to x, or run
// again because of err.
func (m *Machine) Stopped(f protocol.Freeze, x protocol.Position, err error) []Effect {
	if m.state != protocol.StatePreparing || f != m.prep.attempt || m.prep.stopped {
		return nil
	}
	var out []Effect
	superseded := f != m.prep.freeze
	if err == nil && (m.prep.abort != nil || superseded) {
		out = append(out, Resume{})
	}
	switch {
	case m.prep.abort != nil:
		return append(out, m.unprepared(m.prep.abort)...)
	case superseded:
		return append(out, m.again()...)
	case err != nil:
		e := protocol.AsError(err)
		return append(out, m.unprepared(&protocol.Error{Code: protocol.CodePrepareFailed, Message: e.Message, Details: e.Details})...)
	}
	m.prep.stopped = true
	return append(out, Send{&protocol.Drained{Freeze: f, Position: x}})
}

// acknowledged is the only way from preparing to quiesced. The state changes
// before the first byte of quiesced is written: from here on no deadline and
// no abort can start the users.
func (m *Machine) acknowledged(a *protocol.AckPosition) []Effect {
	if m.state != protocol.StatePreparing || !m.prep.stopped || a.Freeze != m.prep.freeze {
		return m.refuse()
	}
	m.state = protocol.StateQuiesced
	m.linked = false
	m.held = nil
	return []Effect{Disarm{}, Send{&protocol.Quiesced{Freeze: a.Freeze, Position: a.Position}}, End{}}
}

func (m *Machine) aborted(a *protocol.Abort) []Effect {
	if m.state != protocol.StatePreparing || a.Freeze != m.prep.freeze {
		return m.refuse()
	}
	err := a.Error
	if err == nil {
		err = protocol.Errorf(protocol.CodePrepareFailed, "the host gave up freeze %d", a.Freeze)
	}
	return m.undo(err)
}

// Deadline says that freeze f has taken too long. When quiesced there is none.
func (m *Machine) Deadline(f protocol.Freeze) []Effect {
	if m.state != protocol.StatePreparing || f != m.prep.freeze {
		return nil
	}
	return m.undo(protocol.Errorf(protocol.CodePrepareFailed, "the guest was not quiesced within %v", protocol.PrepareDeadline))
}

// undo goes back to running with err for the call that the freeze names. A
// Stop that is under way has to end first.
func (m *Machine) undo(err *protocol.Error) []Effect {
	if m.prep.stopped {
		return append([]Effect{Resume{}}, m.unprepared(err)...)
	}
	if m.prep.abort != nil {
		return nil
	}
	m.prep.abort = err
	return []Effect{Cancel{}}
}

// unprepared is running again, after a freeze that came to nothing.
func (m *Machine) unprepared(err *protocol.Error) []Effect {
	p := m.prep
	m.state, m.prep = protocol.StateRunning, preparing{}
	out := append([]Effect{Disarm{}}, m.failed(p, err)...)
	return append(out, m.running()...)
}

// failed tells the caller that p names, and the host.
func (m *Machine) failed(p preparing, err *protocol.Error) []Effect {
	out := m.settle(p.key, protocol.Outcome{Error: err})
	if m.linked {
		out = append(out, Send{&protocol.PrepareFailed{Freeze: p.freeze, Error: err}})
	}
	return out
}

// running takes and sends what waited for the users to run.
func (m *Machine) running() []Effect {
	var out []Effect
	held := m.held
	m.held = nil
	for _, o := range held {
		out = append(out, m.outcome(o)...)
	}
	return append(out, m.flush()...)
}
