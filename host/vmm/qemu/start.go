package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"

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
	vm := newVM(spec, sockets)
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
	for name, fd := range map[string]*int{qmpSocket: &m.qmp, controlSocket: &m.control, bulkSocket: &m.bulk, consoleSocket: &m.console} {
		f, err := vm.sockets.listen(name)
		if err != nil {
			return err
		}
		*fd = files.give(f)
	}
	if spec.Rootfs != "" {
		f, err := os.Open(spec.Rootfs)
		if err != nil {
			return fmt.Errorf("open root file system: %w", err)
		}
		m.rootfs = files.give(f)
	}
	log, err := newLog()
	if err != nil {
		return err
	}
	// Before the start, so that nothing that the guest prints is lost.
	err = vm.openConsole(ctx)
	if err == nil {
		err = fault.Point("qemu.start")
	}
	if err == nil {
		vm.process, err = start(ctx, program, m.args(), files, spec, log)
	}
	if err != nil {
		vm.closeConsole()
		return errors.Join(err, log.Close())
	}
	vm.log = log
	go vm.wait(connected)
	d.opt.Log.Debug("qemu started", "pid", vm.PID(), "dir", spec.Dir)
	return nil
}

// openConsole keeps the end of what the guest prints, until the machine ends or
// closeConsole.
func (v *VM) openConsole(ctx context.Context) error {
	conn, err := v.sockets.dial(ctx, consoleSocket)
	if err != nil {
		return err
	}
	v.consoleConn = conn
	v.outputs.Go(func() { v.console.drain(conn) })
	return nil
}

func (v *VM) closeConsole() {
	if v.consoleConn != nil {
		v.consoleConn.Close()
	}
	v.outputs.Wait()
}

// connect opens QMP and waits for the main loop. The socket was listening
// before the process started, so the first attempt succeeds and waits.
func (v *VM) connect(ctx context.Context, opt Options) error {
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
	if err := q.execute(ctx, "query-status", nil, &status); err != nil {
		return err
	}
	return v.process.identify()
}

// abandon kills a machine whose start failed and adds why it ended, if by
// itself, and what it printed.
func (v *VM) abandon(err error) error {
	select {
	case <-v.exited:
	default:
		v.process.kill()
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
