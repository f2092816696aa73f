package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/vmm"
)

// starter runs functions on one thread that lives as long as the process.
// PR_SET_PDEATHSIG is about the thread that forked, and threads of the Go
// runtime may end at any time. The thread has no_new_privs, which what it
// starts inherits.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go serveStarter(work)
	return work
})

func serveStarter(work <-chan func()) {
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	for f := range work {
		f()
	}
}

// onStarter runs f on the starter's thread.
func onStarter(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	select {
	case starter() <- func() { result <- f() }:
		return <-result
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// inherited collects the files a process gets, from descriptor 3 on.
type inherited struct {
	files []*os.File
	owned []*os.File // closed once the process has them
}

// give passes f on and closes it here after the start.
func (h *inherited) give(f *os.File) int {
	h.owned = append(h.owned, f)
	return h.lend(f)
}

// lend passes f on; it stays the caller's.
func (h *inherited) lend(f *os.File) int {
	h.files = append(h.files, f)
	return 2 + len(h.files)
}

func (h *inherited) close() {
	for _, f := range h.owned {
		f.Close()
	}
	h.owned = nil
}

// Limits of a QEMU process. It opens few files, and writes none but device
// state; RAM is mapped.
const (
	maxOpenFiles = 1024
	maxFileSize  = maxState
)

// start runs the program with nothing but these files.
func start(ctx context.Context, program string, args []string, files *inherited, spec vmm.Spec, stderr *os.File) (*process, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stderr = stderr
	cmd.ExtraFiles = files.files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !spec.Resident {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if os.Geteuid() == 0 && (spec.UID >= 0 || spec.GID >= 0) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id(spec.UID, os.Geteuid()), Gid: id(spec.GID, os.Getegid())}
	} else if spec.UID >= 0 && spec.UID != os.Geteuid() {
		return nil, fmt.Errorf("start %s as user %d: %w", program, spec.UID, os.ErrPermission)
	}
	if spec.Cgroup != "" {
		fd, err := unix.Open(spec.Cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open cgroup: %w", &os.PathError{Op: "open", Path: spec.Cgroup, Err: err})
		}
		defer unix.Close(fd)
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
	}
	var p *process
	err := onStarter(ctx, func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		err := limit(cmd.Process.Pid, cmd.SysProcAttr.Credential)
		if err == nil {
			p, err = ofChild(cmd)
		}
		if err != nil {
			cmd.Process.Kill()
			return errors.Join(fmt.Errorf("limit: %w", err), cmd.Wait())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// limit sets the limits of a process that was just started. On the starter's
// thread.
func limit(pid int, user *syscall.Credential) error {
	err := setLimits(pid)
	if user == nil || !errors.Is(err, unix.EPERM) {
		return err
	}
	// Without CAP_SYS_RESOURCE it takes the real ids of the target. The raw
	// calls change those of this thread alone, and only for this moment.
	uid, gid := uintptr(os.Getuid()), uintptr(os.Getgid())
	unix.RawSyscall(unix.SYS_SETRESGID, uintptr(user.Gid), keepID, keepID)
	unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user.Uid), keepID, keepID)
	err = setLimits(pid)
	unix.RawSyscall(unix.SYS_SETRESUID, uid, keepID, keepID)
	unix.RawSyscall(unix.SYS_SETRESGID, gid, keepID, keepID)
	return err
}

// keepID is -1 as the kernel takes it: leave that id.
const keepID = 1<<32 - 1

func setLimits(pid int) error {
	for which, v := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: maxOpenFiles, unix.RLIMIT_FSIZE: maxFileSize} {
		if err := unix.Prlimit(pid, which, &unix.Rlimit{Cur: v, Max: v}, nil); err != nil {
			return err
		}
	}
	return nil
}

func id(wanted, own int) uint32 {
	if wanted < 0 {
		return uint32(own)
	}
	return uint32(wanted)
}
