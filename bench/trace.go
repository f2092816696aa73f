package main

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// mark is one moment: what ended then, or began if the name says so.
type mark struct {
	name string
	vm   protocol.VMID // empty: no machine's
	at   time.Time
}

// trace listens at the coordinator's ports.
type trace struct {
	mu    sync.Mutex // guards what follows
	marks []mark
	vms   []*tracedVM
}

func (t *trace) mark(name string, vm protocol.VMID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.marks = append(t.marks, mark{name, vm, time.Now()})
}

// take returns the marks so far and forgets them.
func (t *trace) take() []mark {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.marks
	t.marks = nil
	return m
}

// machines lists the living machines in the order of their loads.
func (t *trace) machines() []*tracedVM {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.vms), func(v *tracedVM) bool {
		select {
		case <-v.Done():
			return true
		default:
			return false
		}
	})
}

// deps puts the trace between the coordinator and its parts.
func (t *trace) deps(d sandbox.Deps) sandbox.Deps {
	d.Machines = tracedMachines{d.Machines, t}
	d.Checkpoints = tracedCheckpoints{d.Checkpoints, t}
	d.Journal = tracedJournal{d.Journal, t}
	return d
}

type tracedMachines struct {
	sandbox.Machines
	t *trace
}

func (m tracedMachines) Load(ctx context.Context, r sandbox.LoadRequest) (sandbox.VM, error) {
	m.t.mark("load begins", r.VM)
	v, err := m.Machines.Load(ctx, r)
	if err != nil {
		return nil, err
	}
	m.t.mark("load", r.VM)
	vm := &tracedVM{v, m.t}
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.t.vms = append(m.t.vms, vm)
	return vm, nil
}

type tracedVM struct {
	sandbox.VM
	t *trace
}

func (v *tracedVM) Connect(ctx context.Context) (sandbox.Link, error) {
	l, err := v.VM.Connect(ctx)
	if err != nil {
		return nil, err
	}
	v.t.mark("connect", v.ID())
	return &tracedLink{l.(*link.Link), v}, nil
}

func (v *tracedVM) Pause(ctx context.Context) error {
	err := v.VM.Pause(ctx)
	v.t.mark("pause", v.ID())
	return err
}

func (v *tracedVM) Resume(ctx context.Context) error {
	err := v.VM.Resume(ctx)
	v.t.mark("un-pause", v.ID())
	return err
}

func (v *tracedVM) Kill() error {
	err := v.VM.Kill()
	v.t.mark("kill", v.ID())
	return err
}

// tracedLink keeps the streams of the link beside its messages.
type tracedLink struct {
	*link.Link
	vm *tracedVM
}

func (l *tracedLink) Send(ctx context.Context, m protocol.Message) error {
	switch m.(type) {
	case *protocol.Prepare:
		l.vm.t.mark("prepare", l.vm.ID())
	case *protocol.Thaw:
		l.vm.t.mark("send thaw", l.vm.ID())
	}
	return l.Link.Send(ctx, m)
}

func (l *tracedLink) Receive(ctx context.Context) (protocol.Message, error) {
	m, err := l.Link.Receive(ctx)
	switch m := m.(type) {
	case *protocol.Hello:
		l.vm.t.mark("hello", l.vm.ID())
	case *protocol.Thawed:
		l.vm.t.mark("thaw", l.vm.ID())
	case *protocol.Call:
		l.vm.t.mark("call "+string(m.Kind), l.vm.ID())
	}
	return m, err
}

func (l *tracedLink) AwaitEnd(ctx context.Context) error {
	err := l.Link.AwaitEnd(ctx)
	l.vm.t.mark("quiesce", l.vm.ID())
	return err
}

type tracedCheckpoints struct {
	sandbox.Checkpoints
	t *trace
}

func (c tracedCheckpoints) Capture(ctx context.Context, vm sandbox.VM, cp sandbox.Checkpoint) (sandbox.Capture, error) {
	v := vm.(*tracedVM)
	capture, err := c.Checkpoints.Capture(ctx, v.VM, cp)
	if err != nil {
		return nil, err
	}
	c.t.mark("scan + copy", v.ID())
	return &tracedCapture{capture, v}, nil
}

type tracedCapture struct {
	sandbox.Capture
	vm *tracedVM
}

func (c *tracedCapture) Publish(ctx context.Context) (sandbox.Checkpoint, error) {
	cp, err := c.Capture.Publish(ctx)
	c.vm.t.mark("publish", c.vm.ID())
	return cp, err
}

type tracedJournal struct {
	sandbox.Journal
	t *trace
}

func (j tracedJournal) Update(label string, f func(sandbox.Tx) error) error {
	err := j.Journal.Update(label, f)
	j.t.mark("journal", "")
	return err
}

// tracedDriver tells when the engine has what to load, and how long device
// state takes.
type tracedDriver struct {
	vmm.Driver
	t *trace
}

func (d tracedDriver) Load(ctx context.Context, spec vmm.Spec, image vmm.Image) (vmm.VM, error) {
	id := protocol.VMID(filepath.Base(spec.Dir))
	d.t.mark("make a new base", id) // or find the one to map
	m, err := d.Driver.Load(ctx, spec, image)
	if err != nil {
		return nil, err
	}
	return tracedMachine{m, d.t, id}, nil
}

type tracedMachine struct {
	vmm.VM
	t  *trace
	id protocol.VMID
}

func (m tracedMachine) SaveState(ctx context.Context, path string) error {
	err := m.VM.SaveState(ctx, path)
	m.t.mark("state", m.id)
	return err
}

// steps are durations by name, in the order of their first appearance.
type steps struct {
	names []string
	took  map[string]time.Duration
	total time.Duration
}

// between takes the steps of marks: each lasts from the mark before it.
func between(marks []mark) steps {
	s := steps{took: map[string]time.Duration{}}
	for i, m := range marks[1:] {
		if _, ok := s.took[m.name]; !ok {
			s.names = append(s.names, m.name)
		}
		s.took[m.name] += m.at.Sub(marks[i].at)
	}
	s.total = marks[len(marks)-1].at.Sub(marks[0].at)
	return s
}

// pauses cuts the marks of one line into its stops, from prepare to thawed.
func pauses(marks []mark) []steps {
	var out []steps
	begin := -1
	for i, m := range marks {
		switch {
		case m.name == "prepare":
			begin = i
		case m.name == "thaw" && begin >= 0:
			out = append(out, between(marks[begin:i+1]))
			begin = -1
		}
	}
	return out
}

func (s steps) rebased() bool { _, ok := s.took["load"]; return ok }
