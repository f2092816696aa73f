package exec

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// input is the standard input of a program. All but file, conn and wake is
// guarded by program.mu.
type input struct {
	file *os.File // nil when there is none; on a terminal the output's file
	conn syscall.RawConn
	pipe *os.File // the pipe's place: neither end, but both can be opened by it
	tty  bool
	wake chan struct{}

	pending []byte // received and not yet handed on
	taken   uint64
	last    byte // the last one taken
	ending  bool // the host said that the end follows what is pending
	final   bool // so did this end: nothing more is handed on
	closed  bool // at its end, or nobody reads
}

func newInput(file *os.File, tty bool) (*input, error) {
	in := &input{file: file, tty: tty, wake: make(chan struct{}, 1)}
	if file == nil {
		in.closed = true
		return in, nil
	}
	conn, err := file.SyscallConn()
	in.conn = conn
	if err != nil || tty {
		return in, err
	}
	in.pipe, err = placeOf(conn)
	return in, err
}

// placeOf keeps a pipe reachable after its write end was closed. It does not
// count as an end, so programs see what they would see without it.
func placeOf(conn syscall.RawConn) (place *os.File, err error) {
	outer := conn.Control(func(fd uintptr) {
		var at int
		if at, err = unix.Open(procFD(fd), unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
			place = os.NewFile(uintptr(at), "pipe")
		}
	})
	return place, errors.Join(outer, err)
}

func procFD(fd uintptr) string { return "/proc/self/fd/" + strconv.Itoa(int(fd)) }

// accept takes what the host sent. The caller holds p.mu.
func (p *program) accept(f *protocol.ExecInput) error {
	in := p.in
	have := in.taken + uint64(len(in.pending))
	if f.Offset > have {
		return protocol.Errorf(protocol.CodeProtocol, "input at offset %d leaves a gap after %d", f.Offset, have)
	}
	data := f.Data[min(uint64(len(f.Data)), have-f.Offset):]
	switch {
	case in.closed || in.final:
		in.taken += uint64(len(data))
		p.changed()
		return nil
	case in.ending && len(data) > 0:
		return protocol.Errorf(protocol.CodeProtocol, "input at offset %d follows its end", have)
	case len(in.pending)+len(data) > protocol.MaxExecInput:
		return protocol.Errorf(protocol.CodeTooLarge, "more than %d bytes of input beyond what was taken", protocol.MaxExecInput)
	}
	in.pending = append(in.pending, data...)
	in.ending = in.ending || f.End
	poke(in.wake)
	return nil
}

// forget drops what no program has seen: the stream it came on has ended.
// The caller holds p.mu.
func (in *input) forget() {
	in.pending, in.ending = nil, false
}

// pushed says why hand stopped.
type pushed int

const (
	pushedBlocked pushed = iota // the pipe is full
	pushedIdle                  // nothing to do, or held
	pushedDone
)

// push hands input on until its end.
func (p *program) push() {
	defer p.writers.Done()
	in := p.in
	for {
		var did pushed
		err := in.conn.Write(func(fd uintptr) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			did = p.hand(int(fd))
			return did != pushedBlocked
		})
		if err != nil || did == pushedDone {
			break
		}
		<-in.wake
	}
	p.endInput()
}

// hand writes what is pending. The caller holds p.mu.
func (p *program) hand(fd int) pushed {
	in := p.in
	for {
		switch {
		case in.closed:
			return pushedDone
		case p.held:
			return pushedIdle
		case len(in.pending) == 0 && (in.ending || in.final):
			return in.finish(fd)
		case len(in.pending) == 0:
			return pushedIdle
		}
		n, err := unix.Write(fd, in.pending)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return pushedBlocked
		case err != nil: // nobody reads any more
			n = len(in.pending)
			in.closed = true
		}
		if n > 0 {
			in.last = in.pending[n-1]
		}
		in.taken += uint64(n)
		if in.pending = in.pending[n:]; len(in.pending) == 0 {
			in.pending = nil
		}
		p.changed()
	}
}

// finish makes the end of input visible to the program. A terminal has no end
// but the VEOF character, which must follow a whole line to mean it.
func (in *input) finish(fd int) pushed {
	if in.tty {
		eof := byte(4)
		if t, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			eof = t.Cc[unix.VEOF]
		}
		b := []byte{eof, eof}
		if in.taken == 0 || in.last == '\n' {
			b = b[:1]
		}
		if _, err := unix.Write(fd, b); errors.Is(err, unix.EAGAIN) {
			return pushedBlocked
		}
	}
	in.closed = true
	return pushedDone
}

// endInput closes the pipe; a terminal stays open for its output.
func (p *program) endInput() {
	p.mu.Lock()
	p.in.taken += uint64(len(p.in.pending))
	p.in.pending, p.in.closed = nil, true
	p.changed()
	p.mu.Unlock()
	poke(p.in.wake)
	if p.in.file != nil && !p.in.tty {
		p.in.file.Close()
	}
}

// closeInput puts the program's input at its end now: what it has not read is
// not for this line. Users are frozen.
func (p *program) closeInput() {
	p.mu.Lock()
	p.in.forget()
	p.in.final = true
	tty := p.in.tty
	if p.in.pipe != nil {
		p.in.drain()
	}
	p.mu.Unlock()
	if tty {
		poke(p.in.wake)
		return
	}
	p.endInput()
}

// drain takes what is in the pipe. The caller holds p.mu, so nothing is added.
func (in *input) drain() {
	r, err := unix.Open(procFD(in.pipe.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return // nobody has it open any more
	}
	defer unix.Close(r)
	b := make([]byte, 64<<10)
	for {
		if n, err := unix.Read(r, b); n <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// release gives up the pipe of a program that is over.
func (in *input) release() {
	if in.pipe != nil {
		in.pipe.Close()
		in.pipe = nil
	}
}
