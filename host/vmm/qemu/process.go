package qemu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
)

// process is a QEMU process, by a descriptor that never means another one. It
// is a child, or was adopted.
type process struct {
	vmm.Process
	fd     *os.File    // pidfd; closing it ends await
	cmd    *exec.Cmd   // nil: not a child
	killed atomic.Bool // by kill
}

// ofChild takes over a child that was just started and not waited for.
func ofChild(cmd *exec.Cmd) (*process, error) {
	p, err := openProcess(cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	p.cmd = cmd
	return p, nil
}

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that await can be ended
		unix.Close(fd)
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &process{Process: vmm.Process{PID: pid}, fd: os.NewFile(uintptr(fd), fmt.Sprintf("process %d", pid))}, nil
}

// identify completes the names of a process that has begun its program.
func (p *process) identify() (err error) {
	if p.StartTime, err = memory.StartTime(p.PID); err == nil {
		p.Program, err = memory.Program(p.PID)
	}
	return err
}

// findProcess opens the process of that name, which is no child. Another one
// that has its pid by now is os.ErrProcessDone.
func findProcess(want vmm.Process) (*process, error) {
	p, err := openProcess(want.PID)
	if err != nil {
		return nil, err
	}
	// What is looked at after this is what the descriptor means, or gone.
	if !memory.Alive(want.PID, want.StartTime) {
		p.close()
		return nil, fmt.Errorf("process %d of start time %d: %w", want.PID, want.StartTime, os.ErrProcessDone)
	}
	p.Process = want
	return p, nil
}

// check holds a process that was found to its program and user.
func (p *process) check(uid int) error {
	program, err := memory.Program(p.PID)
	if err != nil {
		return err
	}
	if program != p.Program {
		return fmt.Errorf("process %d runs %s, not %s", p.PID, program, p.Program)
	}
	users, err := memory.UIDs(p.PID)
	if err != nil {
		return err
	}
	if uid < 0 {
		uid = os.Geteuid()
	}
	if slices.ContainsFunc(users, func(u int) bool { return u != uid }) {
		return fmt.Errorf("process %d runs as users %v, not %d", p.PID, users, uid)
	}
	return nil
}

// kill sends SIGKILL. No error when the process has ended.
func (p *process) kill() error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return err
	}
	p.killed.Store(true)
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, sent)
	}
	return nil
}

// await returns when the process has ended, or with an error when it is
// closed. A child is reaped then.
func (p *process) await() error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return err == nil && n > 0
	})
	if err == nil && p.cmd != nil {
		p.cmd.Wait() // its status is in ProcessState
	}
	return err
}

// status says how an awaited process ended.
func (p *process) status() (text string, killed bool) {
	if p.cmd == nil {
		return "status unknown: it was another process's child", p.killed.Load()
	}
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return p.cmd.ProcessState.String(), status.Signaled() && status.Signal() == syscall.SIGKILL
}

func (p *process) close() error { return p.fd.Close() }
