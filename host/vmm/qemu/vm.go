package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// Bounds of what is kept of a machine's output.
const (
	consoleTail = 64 << 10
	logTail     = 16 << 10
)

// VM is one QEMU process.
type VM struct {
	cmd       *exec.Cmd
	startTime uint64
	ram       []vmm.RAMRegion
	sockets   *socketDir
	qmp       *qmp // set before the VM is handed out
	console   *tail
	log       *tail
	outputs   sync.WaitGroup // drains of console and log
	exited    chan struct{}  // the process was reaped
	done      chan struct{}  // and why it ended is known
	remove    func() error   // once: what is left in the directory

	mu     sync.Mutex
	reason vmm.Reason // told by events; "" if none was
	end    *vmm.EndError
}

var _ vmm.VM = (*VM)(nil)

// PID implements vmm.VM.
func (v *VM) PID() int { return v.cmd.Process.Pid }

// StartTime implements vmm.VM.
func (v *VM) StartTime() uint64 { return v.startTime }

// RAM implements vmm.VM.
func (v *VM) RAM() []vmm.RAMRegion { return v.ram }

// Carrier implements vmm.VM.
func (v *VM) Carrier() link.Carrier { return carrier{v} }

// ConsoleTail implements vmm.VM.
func (v *VM) ConsoleTail() []byte { return v.console.bytes() }

// Done implements vmm.VM.
func (v *VM) Done() <-chan struct{} { return v.done }

// Err implements vmm.VM.
func (v *VM) Err() error {
	select {
	case <-v.done:
		return v.end
	default:
		return nil
	}
}

// Pause implements vmm.VM.
func (v *VM) Pause(ctx context.Context) error { return v.execute(ctx, "stop", nil, nil) }

// Resume implements vmm.VM.
func (v *VM) Resume(ctx context.Context) error { return v.execute(ctx, "cont", nil, nil) }

// Kill implements vmm.VM.
func (v *VM) Kill(ctx context.Context) error {
	// By pidfd or before Wait has reaped it: never another process.
	if err := v.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill machine: %w", err)
	}
	select {
	case <-v.done:
		return v.remove()
	case <-ctx.Done():
		return fmt.Errorf("wait for the machine's end: %w", context.Cause(ctx))
	}
}

// execute runs a QMP command; when the machine ended, the error says why.
func (v *VM) execute(ctx context.Context, command string, arguments, out any, files ...*os.File) error {
	err := v.qmp.execute(ctx, command, arguments, out, files...)
	if err == nil {
		return nil
	}
	select {
	case <-v.qmp.done: // its process is gone, or about to be reaped
	default:
		return err
	}
	select {
	case <-v.done:
		return fmt.Errorf("run %s: %w", command, v.Err())
	case <-ctx.Done():
		return err
	}
}

// on notes what events say about the machine's end.
func (v *VM) on(e event) {
	var data struct {
		Reason string `json:"reason"`
	}
	if e.Name == "SHUTDOWN" && json.Unmarshal(e.Data, &data) != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case e.Name == "GUEST_PANICKED":
		v.reason = vmm.ReasonPanic
	case e.Name == "SHUTDOWN" && v.reason == "":
		switch data.Reason {
		case "guest-reset", "subsystem-reset":
			v.reason = vmm.ReasonReset
		case "guest-shutdown":
			v.reason = vmm.ReasonPoweroff
		case "guest-panic":
			v.reason = vmm.ReasonPanic
		}
	}
}

// wait reaps the process. The VM's goroutine.
func (v *VM) wait(connected <-chan struct{}) {
	v.cmd.Wait()
	close(v.exited)
	v.outputs.Wait()
	// The sockets' peers are gone, so QMP ends after what was still in it.
	<-connected
	if v.qmp != nil {
		<-v.qmp.done
	}
	v.mu.Lock()
	v.end = &vmm.EndError{Reason: v.why(), Status: v.cmd.ProcessState.String(), Log: string(v.log.bytes())}
	v.mu.Unlock()
	close(v.done)
}

var panicLine = []byte("Kernel panic - not syncing")

// why chooses the reason. Called with mu held, after the end.
func (v *VM) why() vmm.Reason {
	status, _ := v.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case v.reason == vmm.ReasonReset && bytes.Contains(v.console.bytes(), panicLine):
		// Before pvpanic's module is there, a panic is seen as a reset only.
		return vmm.ReasonPanic
	case v.reason != "":
		return v.reason
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		return vmm.ReasonKilled
	}
	return vmm.ReasonExited
}

func (v *VM) identify() (err error) {
	v.startTime, err = memory.StartTime(v.PID())
	return err
}
