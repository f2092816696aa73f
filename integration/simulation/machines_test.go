package simulation_test

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// vm is a process that holds a guest. It outlives the daemon in root mode.
type vm struct {
	world   *world
	id      protocol.VMID
	number  int
	guest   *guest
	link    *link // the newest
	paused  bool
	dead    bool
	mute    bool // neither hears nor says anything any more
	host    *daemon
	past    []protocol.Message // that its guest has received
	caller  protocol.Key       // of the checkpoint it was loaded from
	excused bool               // it may be given up
	born    int                // step of the capture it was loaded from
	done    chan struct{}
	err     error
}

func (v *vm) String() string { return v.world.nameOf("vm", string(v.id)) }

// die ends the process.
func (v *vm) die(why error) {
	if v.dead {
		return
	}
	w := v.world
	v.dead, v.err = true, why
	w.vms = slices.DeleteFunc(w.vms, func(x *vm) bool { return x == v })
	if v.link != nil {
		v.link.cut()
	}
	close(v.done)
}

// machines is what one daemon can do with VMs.
type machines struct{ host *daemon }

var _ sandbox.Machines = machines{}

func (m machines) Load(ctx context.Context, r sandbox.LoadRequest) (sandbox.VM, error) {
	w := m.host.world
	var v *vm
	err := m.host.do(ctx, &parked{label: "load", id: string(r.VM), faults: []fault{full, refused}, effect: func(f fault) error {
		w.rules.loaded(r)
		s := w.disk.published(r.Checkpoint)
		switch {
		case f == full:
			return syscall.ENOSPC
		case f == refused:
			return errors.New("the machine did not start")
		case s == nil:
			return protocol.Errorf(protocol.CodeCheckpointLost, "no checkpoint %s", r.Checkpoint)
		}
		w.made++
		v = &vm{world: w, host: m.host, caller: s.meta.Key, id: r.VM, number: w.made, born: s.step, done: make(chan struct{})}
		v.guest = s.guest.load(v)
		w.vms = append(w.vms, v)
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return &machine{m.host, v}, nil
}

func (w *world) find(id protocol.VMID) *vm {
	for _, v := range w.vms {
		if v.id == id {
			return v
		}
	}
	return nil
}

func (m machines) Adopt(ctx context.Context, r sandbox.VMRecord) (sandbox.VM, error) {
	var out sandbox.VM
	err := m.host.do(ctx, &parked{label: "adopt", id: string(r.ID), effect: func(fault) error {
		if v := m.host.world.find(r.ID); v != nil {
			out = &machine{m.host, v}
		}
		return nil
	}})
	return out, err
}

func (m machines) Sweep(ctx context.Context, r sandbox.VMRecord) error {
	return m.host.do(ctx, &parked{label: "sweep-vm", id: string(r.ID), effect: func(fault) error {
		if v := m.host.world.find(r.ID); v != nil {
			v.die(errors.New("swept"))
		}
		return nil
	}})
}

// machine is a VM as one daemon sees it.
type machine struct {
	host *daemon
	vm   *vm
}

var _ sandbox.VM = (*machine)(nil)

func (m *machine) ID() protocol.VMID     { return m.vm.id }
func (m *machine) PID() int              { return m.vm.number }
func (m *machine) StartTime() uint64     { return uint64(m.vm.number) }
func (m *machine) Done() <-chan struct{} { return m.vm.done }
func (m *machine) Err() error            { return m.vm.err }

func (m *machine) Connect(ctx context.Context) (sandbox.Link, error) {
	v := m.vm
	var l *link
	err := m.host.do(ctx, &parked{label: "connect", vm: v, blocked: func() bool { return !v.dead && v.mute }, effect: func(fault) error {
		if v.dead {
			return v.err
		}
		v.world.rules.spoken(m.host)
		if v.paused {
			v.world.fail("%v is paused, and a link to it is made", v)
		}
		if v.link != nil {
			v.link.cut()
		}
		l = &link{host: m.host, vm: v, news: make(chan struct{}, 1), done: make(chan struct{})}
		v.link = l
		v.guest.linkUp()
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (m *machine) Pause(ctx context.Context) error {
	v := m.vm
	return m.host.do(ctx, &parked{label: "pause", vm: v, faults: []fault{refused}, effect: func(f fault) error {
		switch {
		case v.dead:
			return v.err
		case f == refused:
			return errors.New("the machine does not pause")
		}
		v.world.rules.pausing(v)
		v.paused = true
		return nil
	}})
}

func (m *machine) Resume(ctx context.Context) error {
	v := m.vm
	return m.host.do(ctx, &parked{label: "un-pause", vm: v, faults: []fault{refused}, effect: func(f fault) error {
		switch {
		case v.dead:
			return v.err
		case f == refused:
			v.excused = true
			return errors.New("the machine does not go on")
		}
		v.world.rules.spoken(m.host)
		v.world.rules.resuming(v)
		v.paused = false
		return nil
	}})
}

func (m *machine) Kill() error {
	v := m.vm
	return m.host.do(context.Background(), &parked{label: "kill", vm: v, effect: func(fault) error {
		v.world.rules.killing(m.host, v)
		v.die(errors.New("killed"))
		return nil
	}})
}
