package boot

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/guest/keep"
)

// KeeperFD is the worker's descriptor of its connection to PID 1.
const KeeperFD = 3

// reaper collects every child that ends: the worker, and the orphans that the
// kernel gives to PID 1.
type reaper struct {
	mu      sync.Mutex // held over a start, so that no child ends unknown
	waiting map[int]chan unix.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan unix.WaitStatus{}}
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCHLD)
	go func() {
		for range c {
			r.reap()
		}
	}()
	return r
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if c := r.waiting[pid]; c != nil {
			delete(r.waiting, pid)
			c <- status
		}
	}
}

// start runs a program whose end is told on the channel.
func (r *reaper) start(path string, args []string, attr *syscall.ProcAttr) (int, <-chan unix.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, args, attr)
	if err != nil {
		return 0, nil, err
	}
	c := make(chan unix.WaitStatus, 1)
	r.waiting[pid] = c
	return pid, c, nil
}

// supervisor keeps a worker running.
type supervisor struct {
	log    *slog.Logger
	reaper *reaper
	args   []string
	start  uint64

	mu  sync.Mutex
	rec keep.Record
}

const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 2 * time.Second
	// settled is how long a worker must live for the next to start at once.
	settled = 10 * time.Second
)

// run starts worker after worker.
func (s *supervisor) run() {
	backoff := minBackoff
	for {
		began := time.Now()
		err := s.runWorker()
		if time.Since(began) > settled {
			backoff = minBackoff
		}
		s.log.Error("the worker ended and is started again", "start", s.start, "error", err, "after", backoff)
		time.Sleep(backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// workerDebug keeps the runtime from interrupting goroutines by signals, since
// all of them wait soon, and from looking for a change of the processors. In a
// copy of this machine either is code that the emulator has to translate anew.
const workerDebug = "GODEBUG=asyncpreemptoff=1,updatemaxprocs=0"

// runWorker runs one worker to its end.
func (s *supervisor) runWorker() error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	s.start++
	pid, ended, err := s.reaper.start("/proc/self/exe", s.args, &syscall.ProcAttr{
		Dir: "/", Env: append(os.Environ(), workerDebug), Files: []uintptr{0, 1, 2, theirs.Fd()},
	})
	theirs.Close()
	if err != nil {
		ours.Close()
		return fmt.Errorf("start the worker: %w", err)
	}
	s.log.Debug("worker started", "start", s.start, "pid", pid)
	served := make(chan error, 1)
	go func() {
		served <- keep.Serve(ours, keep.First{Start: s.start, Record: s.record()}, s.save)
		// Without this connection the worker must not act, so it ends too.
		ours.Close()
	}()
	status := <-ended
	return errors.Join(describe(status), <-served)
}

func (s *supervisor) record() keep.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

func (s *supervisor) save(r keep.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec = r
}

func describe(status unix.WaitStatus) error {
	if status.Signaled() {
		return fmt.Errorf("killed by signal %d (%v)", int(status.Signal()), status.Signal())
	}
	return fmt.Errorf("exit status %d", status.ExitStatus())
}

// socketPair gives PID 1's end, which its children do not inherit, and the
// worker's.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("connect the worker: %w", err)
	}
	file := os.NewFile(uintptr(fds[0]), "worker")
	defer file.Close()
	theirs := os.NewFile(uintptr(fds[1]), "keeper")
	ours, err := net.FileConn(file)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("connect the worker: %w", err)
	}
	return ours, theirs, nil
}
