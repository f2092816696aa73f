package agent

import (
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

// Effect is something that Machine wants done. Effects are carried out in the
// order in which they are returned, each before the next is begun.
type Effect interface{ effect() }

// The effects.
type (
	// Keep tells PID 1; nothing that follows may happen before it has answered.
	Keep struct{ Record keep.Record }
	// Stop begins to quiesce, in the background; Machine.Stopped ends it.
	Stop struct{ Freeze protocol.Freeze }
	// Cancel hurries the Stop that is under way; Stopped still follows.
	Cancel struct{}
	// Resume unfreezes users and participants.
	Resume struct{}
	// Arm sets the deadline of a freeze, after which Machine.Deadline is
	// called. There is one; Arm replaces it.
	Arm struct{ Freeze protocol.Freeze }
	// Disarm removes the deadline.
	Disarm struct{}
	// Send queues a message on the link.
	Send struct{ Message protocol.Message }
	// End ends the link when all that was sent is written.
	End struct{}
	// Fix sets clock, entropy and identity; Machine.Fixed or NotFixed follows.
	Fix struct {
		Thaw        *protocol.Thaw
		NewTimeline bool
	}
	// SetTime corrects the clock of a running machine.
	SetTime struct{ Attach *protocol.Attach }
	// Deliver waits, in the background, until the host has what programs have
	// printed so far; Machine.Delivered follows.
	Deliver struct{ Key protocol.Key }
	// Answer gives a caller its outcome, without waiting for it to read.
	Answer struct {
		Caller  Caller
		Outcome protocol.Outcome
		// Resumed: a thaw came between call and answer.
		Resumed bool
	}
	// Notify tells subscribers of a thaw.
	Notify struct{ Event protocol.ResumeEvent }
	// Observe replaces the program whose end is reported by Machine.Exited.
	// Nil: none any more.
	Observe struct{ Watch *keep.Watch }
)

func (Keep) effect()    {}
func (Stop) effect()    {}
func (Cancel) effect()  {}
func (Resume) effect()  {}
func (Arm) effect()     {}
func (Disarm) effect()  {}
func (Send) effect()    {}
func (End) effect()     {}
func (Fix) effect()     {}
func (SetTime) effect() {}
func (Deliver) effect() {}
func (Answer) effect()  {}
func (Notify) effect()  {}
func (Observe) effect() {}
