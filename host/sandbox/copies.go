package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// newcopy is a VM that is being loaded from a checkpoint and will become a
// new timeline when the operation commits.
type newcopy struct {
	vmID     protocol.VMID
	line     protocol.LineID
	timeline protocol.TimelineID
	stream   protocol.StreamID
	origin   protocol.CheckpointID
	position protocol.Position
	freeze   protocol.Freeze
	op       string
	host     string // hostnames begin with it
	// machineID is for a line that has none yet.
	machineID string

	vm      VM
	session *session
	started time.Time
}

// newCopy names a copy of cp that will be a timeline of line.
func (s *Sandbox) newCopy(cp Checkpoint, line protocol.LineID) *newcopy {
	var b [16]byte
	rand.Read(b[:])
	c := &newcopy{vmID: protocol.NewVMID(), line: line, machineID: hex.EncodeToString(b[:]), timeline: protocol.NewTimelineID(), stream: protocol.NewStreamID(),
		origin: cp.ID, position: cp.Position, freeze: cp.Freeze, op: "load",
		host: strings.TrimPrefix(string(s.id), "sb-")[:6]}
	return c
}

// intend writes the records that must be durable before the VM exists.
func (c *newcopy) intend(tx Tx) error {
	return errors.Join(
		vms.put(tx, string(c.vmID), VMRecord{ID: c.vmID, Operation: c.op}),
		streams.put(tx, string(c.stream), StreamRecord{ID: c.stream, Parent: c.position, Owner: c.timeline}))
}

// loadCopy starts the VM and waits for its hello.
func (s *Sandbox) loadCopy(ctx context.Context, c *newcopy, siblings int, cp Checkpoint) error {
	vm, err := s.machines.Load(ctx, LoadRequest{VM: c.vmID, Checkpoint: cp.ID, Siblings: siblings})
	if err != nil {
		return fmt.Errorf("load %s: %w", cp.ID, diskError(err))
	}
	c.vm, c.started = vm, time.Now()
	c.session, err = s.greet(ctx, vm, cp.Freeze)
	return err
}

// greet connects to a loaded guest, which must be quiesced with freeze.
func (s *Sandbox) greet(ctx context.Context, vm VM, freeze protocol.Freeze) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeouts.Silence)
	defer cancel()
	ss, err := s.dial(ctx, vm)
	if err != nil {
		return nil, fmt.Errorf("connect to loaded guest: %w", err)
	}
	if h := ss.hello; h.State != protocol.StateQuiesced || h.Freeze != freeze {
		ss.close()
		return nil, protocol.Errorf(protocol.CodeProtocol, "loaded guest says %s, freeze %d; want quiesced, freeze %d", h.State, h.Freeze, freeze)
	}
	return ss, nil
}

// become writes the records of the copy as a live timeline of line, which is
// new or was read in this transaction.
func (c *newcopy) become(tx Tx, line LineRecord) error {
	line.Timeline, line.MachineID = c.timeline, cmp.Or(line.MachineID, c.machineID)
	rec := TimelineRecord{ID: c.timeline, Line: c.line, Created: time.Now().UTC(), Origin: c.origin, Stream: c.stream,
		Freezes: c.freeze, State: StateLive, Incarnation: 1, VM: c.vmID}
	vm := VMRecord{ID: c.vmID, Timeline: c.timeline, Incarnation: 1}
	if c.vm != nil {
		vm.PID, vm.StartTime = c.vm.PID(), c.vm.StartTime()
	}
	if line.Hostname == "" {
		line.Hostname = c.host + "-" + strings.ReplaceAll(line.Node, ".", "-")
	}
	return errors.Join(lines.put(tx, string(line.ID), line), timelines.put(tx, string(c.timeline), rec), vms.put(tx, string(c.vmID), vm))
}

// dropCopies kills copies whose operation did not commit and removes their
// records.
func (s *Sandbox) dropCopies(copies ...*newcopy) error {
	var errs []error
	for _, c := range copies {
		if c.session != nil {
			c.session.close()
		}
		if c.vm != nil {
			errs = append(errs, c.vm.Kill())
		}
	}
	return errors.Join(append(errs, s.record("journal.drop", func(tx Tx) error {
		for _, c := range copies {
			if err := errors.Join(vms.delete(tx, string(c.vmID)), streams.delete(tx, string(c.stream))); err != nil {
				return err
			}
		}
		return nil
	}))...)
}

// enter makes a copy that is being committed a running timeline of this
// process. Its turn is held by the caller.
func (s *Sandbox) enter(c *newcopy, replaces protocol.TimelineID) *timeline {
	t := s.newTimeline(TimelineRecord{ID: c.timeline, Line: c.line, Origin: c.origin, Stream: c.stream, Freezes: c.freeze, Incarnation: 1}, c.vm)
	t.current = c.session
	t.replaces = replaces
	t.turn <- struct{}{}
	s.mu.Lock()
	s.timelines[t.id] = t
	s.mu.Unlock()
	return t
}
