package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// prepareFunc adds what Boot and Load differ in.
type prepareFunc func(*machine, *inherited) error

// start runs QEMU until its main loop answers: all memory is mapped by then.
// On failure nothing is left.
func (d *Driver) start(ctx context.Context, spec vmm.Spec, prepare prepareFunc) (*VM, error) {
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	program, _, err := d.find(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.opt.StartTimeout,
		protocol.Errorf(protocol.CodeTimeout, "QEMU was not ready within %s", d.opt.StartTimeout))
	defer cancel()
	sockets, err := openSocketDir(spec.Dir)
	if err != nil {
		return nil, err
	}
	vm := &VM{
		ram: ramRegions(spec.MemoryBytes), sockets: sockets,
		console: newTail(consoleTail), log: newTail(logTail),
		exited: make(chan struct{}), done: make(chan struct{}),
		remove: sync.OnceValue(sockets.close),
	}
	connected := make(chan struct{})
	if err := d.launch(ctx, vm, program, spec, prepare, connected); err != nil {
		return nil, errors.Join(err, vm.remove())
	}
	err = vm.connect(ctx, d.opt)
	close(connected)
	if err == nil {
		return vm, nil
	}
	return nil, vm.abandon(err)
}

// checkSpec refuses what would end as QEMU's refusal or worse.
func checkSpec(spec vmm.Spec) error {
	switch {
	case spec.MemoryBytes <= 0 || spec.MemoryBytes%(1<<20) != 0:
		return protocol.Errorf(protocol.CodeInvalidArgument, "memory of %d bytes is not a multiple of 1 MiB", spec.MemoryBytes)
	case spec.CPUs < 1 || spec.CPUs > 64:
		return protocol.Errorf(protocol.CodeInvalidArgument, "%d CPUs; 1 to 64 are possible", spec.CPUs)
	}
	return nil
}

// launch starts the process and the goroutines that belong to it.
func (d *Driver) launch(ctx context.Context, vm *VM, program string, spec vmm.Spec, prepare prepareFunc, connected <-chan struct{}) error {
	m := &machine{
		accel: d.opt.Accel, cpu: d.opt.CPU, translationMiB: d.opt.TranslationMiB,
		cpus: spec.CPUs, memory: spec.MemoryBytes, rootfs: -1,
	}
	files := &inherited{}
	defer files.close()
	if err := prepare(m, files); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		fd   *int
	}{{qmpSocket, &m.qmp}, {controlSocket, &m.control}, {bulkSocket, &m.bulk}} {
		f, err := vm.sockets.listen(s.name)
		if err != nil {
			return err
		}
		*s.fd = files.give(f)
	}
	if spec.Rootfs != "" {
		f, err := os.Open(spec.Rootfs)
		if err != nil {
			return fmt.Errorf("open root file system: %w", err)
		}
		m.rootfs = files.give(f)
	}
	console, consoleEnd, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make console: %w", err)
	}
	m.console = files.give(consoleEnd)
	log, logEnd, err := os.Pipe()
	if err != nil {
		console.Close()
		return fmt.Errorf("make log: %w", err)
	}
	files.owned = append(files.owned, logEnd)
	err = fault.Point("qemu.start")
	if err == nil {
		vm.cmd, err = start(ctx, program, m.args(), files, spec.UID, spec.GID, logEnd)
	}
	if err != nil {
		console.Close()
		log.Close()
		return err
	}
	vm.outputs.Go(func() { vm.console.drain(console) })
	vm.outputs.Go(func() { vm.log.drain(log) })
	go vm.wait(connected)
	d.opt.Log.Debug("qemu started", "pid", vm.PID(), "dir", spec.Dir)
	return nil
}

// connect opens QMP and waits for the main loop. The socket was listening
// before the process started, so the first attempt succeeds and waits.
func (v *VM) connect(ctx context.Context, opt Options) error {
	if err := v.identify(); err != nil {
		return err
	}
	// A process that ended cannot accept: the wait must end with it.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-v.exited:
			cancel(unix.ECONNRESET)
		case <-ctx.Done():
		}
	}()
	conn, err := v.sockets.dial(ctx, qmpSocket)
	if err != nil {
		return err
	}
	q, err := newQMP(ctx, conn, opt.CommandTimeout, v.on)
	if err != nil {
		return err
	}
	v.qmp = q
	// The greeting may come from a thread of its own while the machine is
	// still being set up; commands are answered by the main loop only.
	var status struct {
		Status string `json:"status"`
	}
	return q.execute(ctx, "query-status", nil, &status)
}

// abandon kills a machine whose start failed and adds why it ended, if by
// itself, and what it printed.
func (v *VM) abandon(err error) error {
	select {
	case <-v.exited:
	default:
		v.cmd.Process.Kill()
	}
	<-v.done
	rmErr := v.remove()
	end := v.end
	if _, ok := errors.AsType[*protocol.Error](err); !ok {
		err = fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeUnavailable, "QEMU did not start"), err)
	}
	if end.Reason != vmm.ReasonKilled || end.Log != "" {
		err = fmt.Errorf("%w: %w", err, end)
	}
	return errors.Join(err, rmErr)
}
