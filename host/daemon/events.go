package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// EventDaemonStarted and the others are the daemon's own events; the rest are
// those of sandbox.Event.
const (
	EventDaemonStarted sandbox.EventKind = "daemon-started"
	EventCreated       sandbox.EventKind = "sandbox-created"
	EventRemoved       sandbox.EventKind = "sandbox-removed"
	EventExecStarted   sandbox.EventKind = "exec-started"
	EventExecEnded     sandbox.EventKind = "exec-ended"
)

// Event is what happened to a sandbox.
type Event struct {
	// Cursor is where the next event begins: read on from there.
	Cursor int64     `json:"cursor"`
	Time   time.Time `json:"time"`

	Kind       sandbox.EventKind     `json:"kind"`
	Sandbox    protocol.SandboxID    `json:"sandbox,omitempty"`
	Node       string                `json:"node,omitempty"`
	Line       protocol.LineID       `json:"line,omitempty"`
	Timeline   protocol.TimelineID   `json:"timeline,omitempty"`
	Replaces   protocol.TimelineID   `json:"replaces,omitempty"`
	Checkpoint protocol.CheckpointID `json:"checkpoint,omitempty"`
	Exec       protocol.ExecID       `json:"exec,omitempty"`
	Error      *protocol.Error       `json:"error,omitempty"`
	// Lost: events between the cursor that was asked for and this one are no
	// longer kept.
	Lost bool `json:"lost,omitempty"`
}

// emit records an event. Its cursor is not stored: where its line ends says it.
func (d *Daemon) emit(e Event) {
	e.Time = time.Now().UTC()
	b, err := json.Marshal(e)
	if err != nil {
		d.log.Error("encode event", "error", err)
		return
	}
	d.events.Write(append(b, '\n'))
}

// CheckCursor answers CodeNotFound for a cursor that is beyond the last event.
func (d *Daemon) CheckCursor(cursor int64) error {
	if cursor < 0 || cursor > d.events.End() {
		return protocol.Errorf(protocol.CodeNotFound, "no event has cursor %d; want 0 to %d", cursor, d.events.End())
	}
	return nil
}

// Events calls f with each event from the cursor on; 0 begins with the oldest
// that is kept. With follow it goes on until ctx ends, else it returns at the
// last one.
func (d *Daemon) Events(ctx context.Context, cursor int64, follow bool, f func(Event) error) error {
	if err := d.CheckCursor(cursor); err != nil {
		return err
	}
	at, rest, lost := cursor, []byte(nil), false
	for {
		if !follow && at >= d.events.End() {
			return nil
		}
		p, err := d.events.Read(ctx, at)
		if err != nil {
			return err
		}
		if p.Offset > at {
			lost, rest = at > 0, nil
			if i := bytes.IndexByte(p.Data, '\n'); i >= 0 { // the middle of a line
				p.Offset, p.Data = p.Offset+int64(i)+1, p.Data[i+1:]
			}
		}
		at = p.Offset + int64(len(p.Data))
		rest = append(rest, p.Data...)
		for {
			line, more, ok := bytes.Cut(rest, []byte("\n"))
			if !ok {
				break
			}
			rest = more
			var e Event
			if err := json.Unmarshal(line, &e); err != nil {
				continue // torn by the end of a process
			}
			e.Cursor, e.Lost, lost = at-int64(len(rest)), lost, false
			if err := f(e); err != nil {
				return err
			}
		}
	}
}
