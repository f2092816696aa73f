package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

// watch reports the end of w's process; it replaces an earlier watch.
func (a *Agent) watch(w *keep.Watch) {
	if a.observe != nil {
		a.observe()
		a.observe = nil
	}
	if w == nil {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	a.observe = cancel
	// Which exec it belongs to can be asked only while the process exists:
	// here, before the users run.
	o := observed{watch: *w}
	if a.cfg.Execs != nil && w.PID != 0 {
		id, main, ok := a.cfg.Execs.Of(w.PID)
		o.exec, o.isMain = id, ok && main == w.PID
		o.inExec = ok
	}
	process, err := openProcess(w.PID, w.Started)
	if err != nil {
		a.log.Debug("the caller of this timeline is gone", keyPID, w.PID, keyError, err)
	}
	a.tasks.Go(func() {
		defer cancel()
		status, stderr, err := o.wait(ctx, process, a.cfg.Execs)
		if err != nil {
			return
		}
		a.deliver(ctx) // the host ends the machine at once
		a.step(func(m *Machine) []Effect { return m.Exited(o.watch, status, stderr) })
	})
}

type observed struct {
	watch  keep.Watch
	exec   protocol.ExecID
	inExec bool
	isMain bool // the process is the exec's main one: its status is known
}

// wait returns how the process ended and the end of its exec's standard error.
// A nil process has ended already.
func (o observed) wait(ctx context.Context, process *os.File, execs Execs) (protocol.ExitStatus, []byte, error) {
	status := protocol.ExitStatus{Code: -1}
	if process != nil {
		defer process.Close()
		if err := awaitExit(ctx, process); err != nil {
			return status, nil, err
		}
		if s, ok := exitInfo(process); ok {
			status = s
		}
	}
	if !o.inExec {
		return status, nil, nil
	}
	if o.isMain {
		select {
		case s, ok := <-execs.Wait(o.exec):
			if ok {
				status = s
			}
		case <-ctx.Done():
			return status, nil, context.Cause(ctx)
		}
	}
	tail := execs.StderrTail(o.exec)
	return status, tail[max(0, len(tail)-protocol.MaxStderrTail):], nil
}

var errOtherProcess = errors.New("the pid belongs to a later process")

// openProcess opens a pidfd that the runtime's poller waits for.
func openProcess(pid int, started uint64) (*os.File, error) {
	if pid <= 0 {
		return nil, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if now, err := startTime(pid); err != nil || now != started {
		f.Close()
		return nil, fmt.Errorf("open process %d: %w", pid, errors.Join(errOtherProcess, err))
	}
	return f, nil
}

// awaitExit waits until a pidfd is readable: its process has ended.
func awaitExit(ctx context.Context, process *os.File) error {
	stop := context.AfterFunc(ctx, func() { process.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := process.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
}

// pidfdInfoExit is PIDFD_INFO_EXIT of include/uapi/linux/pidfd.h (Linux 6.15).
const pidfdInfoExit = 1 << 3

// exitInfo asks how a process ended that is not a child of this one. Older
// kernels do not tell.
func exitInfo(process *os.File) (protocol.ExitStatus, bool) {
	info := unix.PidfdInfo{Mask: pidfdInfoExit}
	if unix.IoctlPidfdInfo(int(process.Fd()), &info) != nil || info.Mask&pidfdInfoExit == 0 {
		return protocol.ExitStatus{}, false
	}
	w := unix.WaitStatus(info.Exit_code)
	if w.Signaled() {
		return protocol.ExitStatus{Code: -1, Signal: unix.SignalName(w.Signal())}, true
	}
	return protocol.ExitStatus{Code: w.ExitStatus()}, true
}

// startTime is when a process was started, in clock ticks since boot: field 22
// of /proc/PID/stat. The name before it may hold anything.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64)
}
