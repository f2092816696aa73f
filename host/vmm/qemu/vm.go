package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// consoleTail bounds what is kept of a guest's output.
const consoleTail = 64 << 10

// VM is one QEMU process.
type VM struct {
	process     *process
	ram         []vmm.RAMRegion
	sockets     *socketDir
	qmp         *qmp // set before the VM is handed out
	console     *tail
	consoleConn *net.UnixConn
	log         *os.File       // what QEMU prints; nil: not known
	outputs     sync.WaitGroup // the drain of the console
	exited      chan struct{}  // the process has ended
	done        chan struct{}  // and why is known
	unwatched   chan struct{}  // wait has returned
	remove      func() error   // once: what is left in the directory

	mu     sync.Mutex
	reason vmm.Reason // told by events; "" if none was
	end    *vmm.EndError
}

var _ vmm.VM = (*VM)(nil)

func newVM(spec vmm.Spec, sockets *socketDir) *VM {
	return &VM{
		ram: ramRegions(spec.MemoryBytes), sockets: sockets, console: newTail(consoleTail),
		exited: make(chan struct{}), done: make(chan struct{}), unwatched: make(chan struct{}),
		remove: sync.OnceValue(sockets.close),
	}
}

// PID implements vmm.VM.
func (v *VM) PID() int { return v.process.PID }

// StartTime implements vmm.VM.
func (v *VM) StartTime() uint64 { return v.process.StartTime }

// Process implements vmm.VM.
func (v *VM) Process() vmm.Process { return v.process.Process }

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

// Paused implements vmm.VM.
func (v *VM) Paused(ctx context.Context) (bool, error) {
	var status struct {
		Running bool `json:"running"`
	}
	err := v.execute(ctx, "query-status", nil, &status)
	return !status.Running, err
}

// Kill implements vmm.VM.
func (v *VM) Kill(ctx context.Context) error {
	if err := v.process.kill(); err != nil {
		select {
		case <-v.done: // before its descriptor was closed
		default:
			return fmt.Errorf("kill machine: %w", err)
		}
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
	defer close(v.unwatched)
	if v.process.await() != nil {
		return // detached
	}
	close(v.exited)
	v.outputs.Wait()
	// The sockets' peers are gone, so QMP ends after what was still in it.
	<-connected
	if v.qmp != nil {
		<-v.qmp.done
	}
	v.mu.Lock()
	status, killed := v.process.status()
	v.end = &vmm.EndError{Reason: v.why(killed), Status: status, Log: readLog(v.log)}
	v.mu.Unlock()
	if v.log != nil {
		v.log.Close()
	}
	close(v.done)
	v.process.close()
}

var panicLine = []byte("Kernel panic - not syncing")

// why chooses the reason. Called with mu held, after the end.
func (v *VM) why(killed bool) vmm.Reason {
	switch {
	case v.reason == vmm.ReasonReset && bytes.Contains(v.console.bytes(), panicLine):
		// Before pvpanic's module is there, a panic is seen as a reset only.
		return vmm.ReasonPanic
	case v.reason != "":
		return v.reason
	case killed:
		return vmm.ReasonKilled
	}
	return vmm.ReasonExited
}
