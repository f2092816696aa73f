package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Adopt implements vmm.Driver.
func (d *Driver) Adopt(ctx context.Context, spec vmm.Spec, p vmm.Process) (vmm.VM, error) {
	vm, err := d.adopt(ctx, spec, p)
	if err != nil {
		if _, typed := errors.AsType[*protocol.Error](err); !typed && !errors.Is(err, os.ErrProcessDone) {
			err = fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeUnavailable, "machine cannot be taken over"), err)
		}
		return nil, fmt.Errorf("adopt machine: %w", err)
	}
	return vm, nil
}

func (d *Driver) adopt(ctx context.Context, spec vmm.Spec, want vmm.Process) (*VM, error) {
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.opt.StartTimeout,
		protocol.Errorf(protocol.CodeUnavailable, "QEMU did not answer within %s", d.opt.StartTimeout))
	defer cancel()
	proc, err := findProcess(want)
	if err != nil {
		return nil, err
	}
	sockets, err := openSocketDir(spec.Dir)
	if err != nil {
		return nil, errors.Join(err, proc.close())
	}
	vm := newVM(spec, sockets)
	vm.process, vm.log = proc, logOf(proc.PID)
	if err = proc.check(spec.UID); err == nil {
		err = fault.Point("qemu.adopt")
	}
	if err == nil {
		err = vm.reach(ctx, d.opt)
	}
	if err != nil {
		return nil, errors.Join(err, vm.letGo(), proc.close())
	}
	connected := make(chan struct{})
	close(connected)
	go vm.wait(connected)
	d.opt.Log.Debug("qemu adopted", "pid", proc.PID, "dir", spec.Dir)
	return vm, nil
}

// adoptable are the states in which a machine can be taken over. In the others
// it has not finished to load, or will not run again.
var adoptable = []string{"running", "paused", "save-vm"}

// reach connects to a machine that runs. That the sockets are this very
// process's is the kernel's word: it notes who listens.
func (v *VM) reach(ctx context.Context, opt Options) error {
	conn, err := v.sockets.dial(ctx, qmpSocket)
	if err != nil {
		return err
	}
	peer, err := peerOf(conn)
	if err == nil && peer != v.PID() {
		err = fmt.Errorf("process %d listens on %s, not %d", peer, qmpSocket, v.PID())
	}
	if err != nil {
		conn.Close()
		return err
	}
	if v.qmp, err = newQMP(ctx, conn, opt.CommandTimeout, v.on); err != nil {
		return err
	}
	var s struct {
		Status string `json:"status"`
	}
	if err := v.qmp.execute(ctx, "query-status", nil, &s); err != nil {
		return err
	}
	if !slices.Contains(adoptable, s.Status) {
		return fmt.Errorf("machine is %q", s.Status)
	}
	return v.openConsole(ctx)
}

// letGo closes everything here and changes nothing there.
func (v *VM) letGo() error {
	var errs []error
	if v.qmp != nil {
		v.qmp.close() // what QMP says of it is of no interest any more
	}
	v.closeConsole()
	if v.log != nil {
		errs = append(errs, v.log.Close())
	}
	return errors.Join(append(errs, v.sockets.release())...)
}

// Detach implements vmm.VM.
func (v *VM) Detach() error {
	// Closing the descriptor ends wait, which leaves the rest to this call.
	err := v.process.close()
	<-v.unwatched
	if v.process.cmd != nil {
		err = errors.Join(err, v.process.cmd.Process.Release())
	}
	return errors.Join(err, v.letGo())
}

// peerOf is the process that listens where a connection went.
func peerOf(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, asked); err != nil {
		return 0, fmt.Errorf("read who listens: %w", err)
	}
	return int(cred.Pid), nil
}
