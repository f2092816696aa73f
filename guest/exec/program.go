package exec

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// program is one started program, from the fork to the end of its memory in
// Manager.kept.
type program struct {
	id      protocol.ExecID
	m       *Manager
	pid     int
	cgroup  cgroup
	tty     *terminal // nil without
	in      *input
	outs    [2]*output    // stdout, stderr
	step    chan struct{} // pokes watch after the main process has ended
	readers sync.WaitGroup
	writers sync.WaitGroup

	mu       sync.Mutex
	session  *session  // the attached stream
	alone    time.Time // when the last session ended
	held     bool      // between Quiesce and Resume
	overdue  bool      // the time-out fired while held
	timedOut bool
	timer    *time.Timer // nil without time-out
	exited   bool        // the main process is reaped
	finished bool        // and the output is complete
	status   protocol.ExitStatus
	known    bool // the host has acknowledged everything after Exit
	waiters  []chan protocol.ExitStatus
}

// launch forks the program and starts its goroutines.
func (m *Manager) launch(id protocol.ExecID, spec *protocol.ExecSpec) (*program, error) {
	pl, err := m.prepare(spec)
	if err != nil {
		return nil, err
	}
	ends, err := openStdio(spec, int(pl.account.uid))
	if err != nil {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return nil, protocol.Errorf(protocol.CodeBusy, "start %q: too many files are open in the guest", pl.argv[0])
		}
		return nil, err
	}
	group, dir, err := makeCgroup(m.cfg.CgroupRoot, id)
	if err != nil {
		ends.close()
		return nil, err
	}
	if dir != nil {
		defer dir.Close()
	}
	p, err := m.newProgram(id, ends, group)
	if err != nil {
		p.in.release()
		ends.close()
		return nil, errors.Join(err, group.remove())
	}
	pid, pidfd, err := pl.fork(ends, dir)
	if err != nil {
		p.in.release()
		ends.close()
		return nil, errors.Join(err, group.remove())
	}
	ends.forked()
	p.pid = pid
	resetOOM(group, pid)
	m.mu.Lock()
	m.live[p] = struct{}{}
	m.mu.Unlock()
	p.run(spec, pidfd)
	return p, nil
}

func (m *Manager) newProgram(id protocol.ExecID, s *stdio, group cgroup) (*program, error) {
	p := &program{id: id, m: m, cgroup: group, tty: s.tty, step: make(chan struct{}, 1)}
	ring := ring{max: m.cfg.RingSize, budget: &m.budget}
	var errIn, errOut, errErr error
	p.in, errIn = newInput(s.in, s.tty != nil)
	p.outs[0], errOut = newOutput("stdout", s.out, ring)
	p.outs[1], errErr = newOutput("stderr", s.err, ring)
	if s.tty != nil {
		p.outs[0].keep = true
	} else {
		p.outs[1].keep = true
	}
	return p, errors.Join(errIn, errOut, errErr)
}

func (p *program) run(spec *protocol.ExecSpec, pidfd *os.File) {
	if spec.TTY && !spec.Stdin {
		p.in.final = true
	}
	for _, o := range p.outs {
		if o.file != nil {
			p.readers.Add(1)
			go p.pull(o)
		}
	}
	if p.in.file != nil {
		p.writers.Add(1)
		go p.push()
	}
	p.mu.Lock()
	if spec.Timeout > 0 {
		p.timer = time.AfterFunc(time.Duration(spec.Timeout), p.expire)
	}
	p.mu.Unlock()
	p.m.watchers.Add(1)
	go p.watch(pidfd)
}

// changed tells the attached stream and, at the end, watch. The caller holds
// p.mu.
func (p *program) changed() {
	if p.session != nil {
		poke(p.session.wake)
	}
	if p.exited {
		poke(p.step)
	}
}

// watch follows the program from its main process's end to the last
// descendant's.
func (p *program) watch(pidfd *os.File) {
	defer p.m.watchers.Done()
	p.await(pidfd)
	pidfd.Close()
	if p.tty != nil {
		p.tty.hangUp()
	}
	p.settle()
	p.endInput()
	p.finish()
	p.readers.Wait()
	p.writers.Wait()
	p.mu.Lock()
	p.in.release()
	p.mu.Unlock()
	p.m.released(p)
}

func (p *program) await(pidfd *os.File) {
	conn, err := pidfd.SyscallConn()
	if err == nil {
		err = conn.Read(func(uintptr) bool { return p.reap(unix.WNOHANG) })
	}
	if err != nil { // the poller refused: wait in a thread
		p.reap(0)
	}
}

// reap takes the status of the main process if it has ended. It holds p.mu, so
// that nobody signals a pid that is no longer the program's.
func (p *program) reap(flags int) bool {
	if flags == 0 {
		unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var ws unix.WaitStatus
	pid, err := unix.Wait4(p.pid, &ws, flags, nil)
	for errors.Is(err, unix.EINTR) {
		pid, err = unix.Wait4(p.pid, &ws, flags, nil)
	}
	if err == nil && pid == 0 {
		return false
	}
	p.status = protocol.ExitStatus{Code: -1}
	switch {
	case err != nil:
		p.m.log.Error("program reaped by someone else", "exec", p.id, "error", err)
	case ws.Signaled():
		p.status.Signal = signalName(ws.Signal())
	default:
		p.status.Code = ws.ExitStatus()
	}
	p.exited = true
	if p.timer != nil {
		p.timer.Stop()
	}
	return true
}

// settle waits until the output is complete.
func (p *program) settle() {
	grace := time.NewTimer(p.m.cfg.Grace)
	defer grace.Stop()
	for over := false; !p.complete(over); {
		select {
		case <-grace.C:
			for _, o := range p.outs {
				p.mark(o)
			}
			over = true
		case <-p.step:
		case <-p.m.closing:
			return
		}
	}
}

func (p *program) complete(over bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.outs {
		if !o.ended && !(over && o.ring.end >= o.must) {
			return false
		}
	}
	return true
}

func (p *program) finish() {
	p.mu.Lock()
	p.finished = true
	for _, o := range p.outs {
		o.discard = true
		o.ring.fit()
		poke(o.room)
	}
	p.changed()
	waiters := p.waiters
	p.waiters = nil
	status := p.status
	p.mu.Unlock()
	for _, w := range waiters {
		w <- status
		close(w)
	}
	p.m.finished(p)
}

// expire is the time-out.
func (p *program) expire() {
	p.mu.Lock()
	if p.exited || p.held {
		p.overdue = !p.exited
		p.mu.Unlock()
		return
	}
	p.timedOut = true
	p.mu.Unlock()
	if err := p.kill(); err != nil {
		p.m.log.Error("kill program at its time-out", "exec", p.id, "error", err)
	}
}

// kill kills all of the program's processes.
func (p *program) kill() error {
	if p.cgroup != "" {
		return p.cgroup.kill()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send(p.pid, unix.SIGKILL)
}

// signal sends a signal by name ("SIGINT" or "INT") to the foreground process
// group of the terminal, else to the program's process group.
func (p *program) signal(name string) error {
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	n := unix.SignalNum(full)
	if n == 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q is not the name of a signal", name)
	}
	if p.tty == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.send(p.pid, n)
	}
	var err error
	// An error of Control means that the terminal has ended, and the program.
	p.outs[0].conn.Control(func(fd uintptr) {
		p.mu.Lock()
		defer p.mu.Unlock()
		group, ok := foreground(int(fd))
		if !ok {
			group = p.pid
		}
		err = p.send(group, n)
	})
	return err
}

// send signals a process group while the main process is not reaped; after
// that its number may be someone else's. The caller holds p.mu.
func (p *program) send(group int, n syscall.Signal) error {
	if p.exited {
		return nil
	}
	if err := unix.Kill(-group, n); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal program: %w", err)
	}
	return nil
}

func (p *program) resize(r *protocol.ExecResize) error {
	if p.tty == nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "program %s has no terminal to resize", p.id)
	}
	var err error
	p.outs[0].conn.Control(func(fd uintptr) { err = resize(int(fd), r.Rows, r.Columns) })
	return err
}

// hold and unhold are Quiesce and Resume for one program.
func (p *program) hold() {
	p.mu.Lock()
	p.held = true
	p.mu.Unlock()
}

func (p *program) unhold() {
	p.mu.Lock()
	p.held = false
	if p.session == nil && !p.alone.IsZero() {
		p.alone = time.Now() // a host attaches again after a capture
	}
	overdue := p.overdue
	p.overdue = false
	p.mu.Unlock()
	for _, o := range p.outs {
		poke(o.room)
	}
	poke(p.in.wake)
	if overdue {
		p.expire()
	}
}

// abandon ends all the manager has to do with the program.
func (p *program) abandon() error {
	err := p.kill()
	p.mu.Lock()
	for _, o := range p.outs {
		o.discard = true
	}
	c := p.session
	p.mu.Unlock()
	if c != nil {
		c.fail(protocol.Errorf(protocol.CodeUnavailable, "the agent in the guest stops"))
	}
	for _, o := range p.outs {
		if o.file != nil {
			o.file.Close()
		}
		poke(o.room)
	}
	p.endInput()
	return err
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIGRTMIN+%d", int(s)-34)
}
