package exec

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// defaultPath is PATH of a program for which nothing else says it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// plan is a checked start.
type plan struct {
	file    string
	argv    []string
	env     []string
	dir     string
	account account
	asked   bool // for the account
}

// prepare checks a start as far as that can be done before the fork, so that
// what is wrong can be named.
func (m *Manager) prepare(spec *protocol.ExecSpec) (*plan, error) {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "argv is empty; its first element names the program")
	}
	if slices.ContainsFunc(spec.Argv, hasNUL) || hasNUL(spec.Dir) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "an argument or the directory holds a NUL byte")
	}
	if spec.Timeout < 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the timeout %v is negative", time.Duration(spec.Timeout))
	}
	who, err := lookupAccount(m.cfg.AccountDir, spec.User)
	if err != nil {
		return nil, err
	}
	env, err := m.environment(spec, who)
	if err != nil {
		return nil, err
	}
	p := &plan{argv: spec.Argv, dir: spec.Dir, account: who, asked: spec.User != ""}
	if p.dir == "" {
		p.dir = m.cfg.Dir
	}
	if !filepath.IsAbs(p.dir) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the directory %q is not an absolute path", p.dir)
	}
	if info, err := os.Stat(p.dir); err != nil || !info.IsDir() {
		return nil, protocol.Errorf(protocol.CodeNotFound, "there is no directory %q in the guest", p.dir)
	}
	if p.file, err = lookProgram(spec.Argv[0], env["PATH"], p.dir); err != nil {
		return nil, err
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		p.env = append(p.env, k+"="+env[k])
	}
	return p, nil
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

func (m *Manager) environment(spec *protocol.ExecSpec, who account) (map[string]string, error) {
	env := map[string]string{"PATH": defaultPath, "LANG": "C.UTF-8"}
	if spec.TTY {
		env["TERM"] = "xterm-256color"
	}
	maps.Copy(env, m.cfg.Env)
	env["HOME"], env["USER"] = who.home, who.name
	maps.Copy(env, spec.Env)
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || hasNUL(v) {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q is not the name of an environment variable, or its value holds a NUL byte", k)
		}
	}
	return env, nil
}

// lookProgram finds argv[0] as execvp does; relative names count from dir.
func lookProgram(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		file := name
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		return file, checkProgram(file, name)
	}
	var refused error
	for d := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		file := filepath.Join(d, name)
		err := checkProgram(file, name)
		if err == nil {
			return file, nil
		}
		if refused == nil && protocol.CodeOf(err) != protocol.CodeNotFound {
			refused = err
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", protocol.Errorf(protocol.CodeNotFound, "no program %q in PATH %s", name, path)
}

func checkProgram(file, name string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return protocol.Errorf(protocol.CodeNotFound, "no program %q in the guest", name)
	case err != nil:
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q cannot be run: %v", file, err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q is not an executable file", file)
	}
	return nil
}

// stdio is what a program's descriptors 0 to 2 are connected to.
type stdio struct {
	child     [3]int
	in        *os.File // nil: no input
	out, err  *os.File // err nil on a terminal
	tty       *terminal
	childOnly []int // closed here after the fork
}

func openStdio(spec *protocol.ExecSpec, owner int) (*stdio, error) {
	s := &stdio{}
	if spec.TTY {
		t, err := openTerminal(owner, spec.Rows, spec.Columns)
		if err != nil {
			return nil, err
		}
		s.tty, s.in, s.out = t, t.master, t.master
		s.child = [3]int{t.slave, t.slave, t.slave}
		return s, nil
	}
	if err := s.pipes(spec.Stdin); err != nil {
		s.close()
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	return s, nil
}

func (s *stdio) pipes(input bool) error {
	var err error
	if input {
		if s.in, err = s.pipe(0, 1); err != nil {
			return err
		}
	} else {
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.child[0] = null
		s.childOnly = append(s.childOnly, null)
	}
	if s.out, err = s.pipe(1, 0); err != nil {
		return err
	}
	s.err, err = s.pipe(2, 0)
	return err
}

// pipe connects the child's descriptor fd; own is the index of the end that
// stays here, which does not block.
func (s *stdio) pipe(fd, own int) (*os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	s.child[fd] = p[1-own]
	s.childOnly = append(s.childOnly, p[1-own])
	if err := unix.SetNonblock(p[own], true); err != nil {
		unix.Close(p[own])
		return nil, err
	}
	return os.NewFile(uintptr(p[own]), "pipe"), nil
}

// forked closes what only the child needs.
func (s *stdio) forked() {
	for _, fd := range s.childOnly {
		unix.Close(fd)
	}
	s.childOnly = nil
}

func (s *stdio) close() {
	s.forked()
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			f.Close() // a terminal's master comes twice, which does no harm
		}
	}
	if s.tty != nil {
		s.tty.hangUp()
	}
}

// userTimerSlack is the kernel's default (include/linux/init_task.h).
const userTimerSlack = 50 * time.Microsecond

// withUserTimers runs f on a thread whose timer slack, which children inherit,
// is that of a user's program: the agent's own is coarser.
func withUserTimers(f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read timer slack: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(userTimerSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0)
	f()
	return nil
}

// fork starts the program in its own session and, if there is one, directly
// in its cgroup.
func (pl *plan) fork(s *stdio, group *os.File) (pid int, pidfd *os.File, err error) {
	fd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &fd}
	if s.tty != nil {
		sys.Setctty, sys.Ctty = true, 0
	}
	if group != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(group.Fd())
	}
	if pl.asked {
		sys.Credential = &syscall.Credential{Uid: pl.account.uid, Gid: pl.account.gid, Groups: pl.account.groups}
	}
	attr := &syscall.ProcAttr{
		Dir: pl.dir, Env: pl.env, Sys: sys,
		Files: []uintptr{uintptr(s.child[0]), uintptr(s.child[1]), uintptr(s.child[2])},
	}
	if e := withUserTimers(func() { pid, err = syscall.ForkExec(pl.file, pl.argv, attr) }); e != nil {
		return 0, nil, fmt.Errorf("start %q: %w", pl.argv[0], e)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return 0, nil, startError(pl, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return pid, nil, fmt.Errorf("watch process: %w", err)
	}
	return pid, os.NewFile(uintptr(fd), "pidfd"), nil
}

// startError names what fork, chdir, setuid or execve refused.
func startError(pl *plan, err error) error {
	code := protocol.CodeInternal
	switch {
	case errors.Is(err, unix.EAGAIN):
		return protocol.Errorf(protocol.CodeOverBudget, "start %q: the guest may have no more processes", pl.argv[0]).With("budget", "processes")
	case errors.Is(err, unix.ENOMEM):
		return protocol.Errorf(protocol.CodeOverBudget, "start %q: the guest has no memory for another process", pl.argv[0]).With("budget", "memory")
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ETXTBSY):
		code = protocol.CodeBusy
	case errors.Is(err, unix.ENOENT):
		return protocol.Errorf(protocol.CodeNotFound, "start %q: %s or its interpreter is missing", pl.argv[0], pl.file)
	case errors.Is(err, unix.E2BIG):
		code = protocol.CodeTooLarge
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOEXEC),
		errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EINVAL):
		code = protocol.CodeInvalidArgument
	}
	return protocol.Errorf(code, "start %q (%s, in %s, as %s): %v", pl.argv[0], pl.file, pl.dir, pl.account.name, err)
}
