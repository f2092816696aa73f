package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// Load implements vmm.Driver.
func (d *Driver) Load(ctx context.Context, spec vmm.Spec, image vmm.Image) (vmm.VM, error) {
	vm, err := d.load(ctx, spec, image)
	if err != nil {
		return nil, fmt.Errorf("load machine: %w", err)
	}
	return vm, nil
}

func (d *Driver) load(ctx context.Context, spec vmm.Spec, image vmm.Image) (*VM, error) {
	if spec.MemoryBytes != image.Base.Size() {
		return nil, protocol.Errorf(protocol.CodeCheckpointRefused, "machine of %d bytes of memory, base of %d", spec.MemoryBytes, image.Base.Size())
	}
	state, err := openState(image.State)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	vm, err := d.start(ctx, spec, func(m *machine, files *inherited) error {
		return d.addBase(ctx, m, files, image.Base)
	})
	if err != nil {
		return nil, err
	}
	// RAM is mapped. Devices read it while their state loads, so it comes first.
	if image.Delta != nil {
		err = image.Delta.Apply(ctx, vm.PID(), image.Base)
	} else {
		_, err = memory.Regions(vm.PID(), image.Base) // refuse now what no capture could use
	}
	if err == nil {
		err = vm.loadState(ctx, state, d.opt.StartTimeout)
	}
	if err != nil {
		return nil, vm.abandon(err)
	}
	return vm, nil
}

func (d *Driver) addBase(ctx context.Context, m *machine, files *inherited, base *memory.Base) error {
	_, v, err := d.find(ctx)
	if err != nil {
		return err
	}
	m.ramReadOnly = v.atLeast(8, 2)
	ram, err := base.File()
	if !m.ramReadOnly {
		// Older ones open it read-write, even for a private mapping.
		ram, err = base.Memfd(ctx)
	}
	if err != nil {
		return err
	}
	m.ram = files.lend(ram)
	return nil
}

// maxState bounds device state; it is some 80 KB.
const maxState = 64 << 20

func openState(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, protocol.Errorf(protocol.CodeCheckpointLost, "device state %s is missing", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open device state: %w", err)
	}
	st, err := f.Stat()
	if err == nil && (st.Size() == 0 || st.Size() > maxState) {
		err = protocol.Errorf(protocol.CodeCheckpointLost, "device state %s has %d bytes", path, st.Size())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// loadState feeds device state through a pipe: some versions of QEMU hang on a
// regular file.
func (v *VM) loadState(ctx context.Context, state *os.File, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		protocol.Errorf(protocol.CodeCheckpointLost, "device state was not loaded within %s", timeout))
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	err = v.qmp.execute(ctx, "getfd", map[string]any{"fdname": "state"}, nil, r)
	r.Close()
	if err != nil {
		w.Close()
		return err
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		defer w.Close()
		io.Copy(w, state) // QEMU's end of it tells of errors
	}()
	// After the machine's end, or its refusal to read, the pipe is cut.
	defer func() { w.Close(); <-fed }()
	if err := v.qmp.execute(ctx, "migrate-incoming", map[string]any{"uri": "fd:state"}, nil); err != nil {
		return v.badState(err)
	}
	return v.awaitLoaded(ctx)
}

// awaitLoaded asks until the state is loaded, at once and then ever slower up
// to 20 ms.
func (v *VM) awaitLoaded(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		var m struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := v.qmp.execute(ctx, "query-migrate", nil, &m); err != nil {
			return v.badState(err)
		}
		switch m.Status {
		case "completed":
			return v.checkPaused(ctx)
		case "failed", "cancelled":
			return protocol.Errorf(protocol.CodeCheckpointLost, "device state was not accepted: %s", m.Error)
		}
		select {
		case <-time.After(pause):
		case <-v.exited:
			return v.badState(errQMPClosed)
		case <-ctx.Done():
			return fmt.Errorf("load device state: %w", context.Cause(ctx))
		}
	}
}

func (v *VM) checkPaused(ctx context.Context) error {
	var s struct {
		Status string `json:"status"`
	}
	if err := v.qmp.execute(ctx, "query-status", nil, &s); err != nil {
		return err
	}
	if s.Status != "paused" {
		return protocol.Errorf(protocol.CodeUnavailable, "machine is %q after its state was loaded", s.Status)
	}
	return nil
}

// badState tells a state at which QEMU exits, which is how it refuses one,
// from other failures.
func (v *VM) badState(err error) error {
	ended := errors.Is(err, errQMPClosed) // who writes may see it before the reader does
	select {
	case <-v.qmp.done:
		ended = true
	default:
	}
	if ended {
		return fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeCheckpointLost, "device state was not accepted"), err)
	}
	return fmt.Errorf("load device state: %w", err)
}
