package machine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Adopt implements sandbox.Machines. It is nil where nothing can be running:
// in an engine whose machines end with it, without a record of this boot of the
// host, or when the process is gone.
func (m *Machines) Adopt(ctx context.Context, r sandbox.VMRecord) (sandbox.VM, error) {
	v, err := m.adopt(ctx, r)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("adopt machine %s: %w", r.ID, err)
	case v == nil:
		return nil, nil
	}
	return v, nil
}

func (m *Machines) adopt(ctx context.Context, want sandbox.VMRecord) (*VM, error) {
	if want.PID == 0 {
		return nil, nil // of an operation that did not commit
	}
	r, err := m.claim(want.ID)
	if r == nil || err != nil {
		return nil, err
	}
	v, err := m.takeOver(ctx, r, want)
	m.mu.Lock()
	defer m.mu.Unlock()
	r.ours, r.vm = v != nil, v
	return v, err
}

// claim takes the room of a machine of an earlier process; nil when there is
// none.
func (e *Engine) claim(id protocol.VMID) (*room, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rooms[id]
	switch {
	case !e.resident || r == nil:
		return nil, nil
	case r.ours:
		return nil, protocol.Errorf(protocol.CodeBusy, "this process has it already")
	case r.record.Boot != e.boot || r.record.Process.PID == 0:
		return nil, nil
	}
	r.ours = true
	return r, nil
}

func (m *Machines) takeOver(ctx context.Context, r *room, want sandbox.VMRecord) (*VM, error) {
	rec := r.record
	if want.PID != rec.Process.PID || want.StartTime != rec.Process.StartTime {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the journal names process %d of start time %d, its directory %d of %d",
			want.PID, want.StartTime, rec.Process.PID, rec.Process.StartTime)
	}
	if rec.MemoryBytes != m.kind.MemoryBytes || rec.CPUs != m.kind.CPUs {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "it has %d bytes of memory and %d CPUs, its sandbox %d and %d",
			rec.MemoryBytes, rec.CPUs, m.kind.MemoryBytes, m.kind.CPUs)
	}
	b, err := m.openBase(rec.Base)
	if err != nil {
		return nil, err
	}
	v := &VM{machines: m, room: r, base: b, baseID: rec.Base, forget: b.Know(rec.Mapped)}
	if v.machine, err = m.driver.Adopt(ctx, r.spec(m.kind), rec.Process); err != nil {
		v.release()
		return nil, err
	}
	// What no capture could use is refused now.
	if _, err := memory.Regions(v.machine.PID(), b.Base); err != nil {
		err = errors.Join(fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeUnavailable, "its memory cannot be captured"), err), v.machine.Detach())
		v.release()
		return nil, err
	}
	return v, nil
}
