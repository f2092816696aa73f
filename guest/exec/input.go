package exec

import (
	"errors"
	"math"
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
	tty  bool
	wake chan struct{}

	pending []byte // received and not yet handed on
	taken   uint64
	last    byte // the last one taken
	ending  bool // the host said that the end follows what is pending
	final   bool // so did this end: nothing more is handed on
	closed  bool // at its end

	// pipe is another reading end of the pipe, -1 without: what the program has
	// not read can be counted and taken out, also after the writing end was
	// closed. The program cannot tell that it is there.
	pipe int
}

func newInput(file *os.File, tty bool) (*input, error) {
	in := &input{file: file, tty: tty, wake: make(chan struct{}, 1), pipe: -1}
	if file == nil {
		in.closed = true
		return in, nil
	}
	conn, err := file.SyscallConn()
	in.conn = conn
	if err != nil || tty {
		return in, err
	}
	var opened error
	err = conn.Control(func(fd uintptr) {
		in.pipe, opened = unix.Open("/proc/self/fd/"+strconv.Itoa(int(fd)), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	return in, errors.Join(err, opened)
}

// accept takes what the host sent. What no program can read is left with the
// host. The caller holds p.mu, and the stream is p.session's.
func (p *program) accept(f *protocol.ExecInput) error {
	in := p.in
	if in.closed || in.final {
		return nil
	}
	have := in.taken + uint64(len(in.pending))
	if f.Offset > have && !p.session.fed {
		in.taken, have = f.Offset, f.Offset // the host has nothing older
		p.changed()
	}
	p.session.fed = true
	if f.Offset > have {
		return protocol.Errorf(protocol.CodeProtocol, "input at offset %d leaves a gap after %d", f.Offset, have)
	}
	data := f.Data[min(uint64(len(f.Data)), have-f.Offset):]
	switch {
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
		case err != nil: // the terminal has ended
			in.closed = true
			return pushedDone
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
	p.in.pending, p.in.closed = nil, true
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
	p.in.taken = p.in.consumed()
	p.in.skip(math.MaxInt)
	tty := p.in.tty
	p.mu.Unlock()
	if tty {
		poke(p.in.wake)
		return
	}
	p.endInput()
}

// advance goes on where the program had come in the timeline that this one
// replaces. Users are frozen.
func (p *program) advance(to uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := p.in
	in.forget()
	if in.final {
		in.taken = to // nothing is given, so it stays there
	}
	if at := in.consumed(); to > at {
		in.skip(int(min(to-at, math.MaxInt)))
	}
	in.taken = max(in.taken, to)
	p.changed()
}

// consumed is how much the program has read. The caller holds p.mu, and users
// are frozen. (A program that writes to its own input can make any number of
// it.)
func (in *input) consumed() uint64 {
	if in.pipe < 0 {
		return in.taken
	}
	unread, err := unix.IoctlGetInt(in.pipe, unix.TIOCINQ)
	if err != nil {
		return in.taken
	}
	return in.taken - min(in.taken, uint64(unread))
}

// skip takes at most n bytes out of the pipe. The caller holds p.mu, so nothing
// is added.
func (in *input) skip(n int) {
	if in.pipe < 0 {
		return
	}
	b := make([]byte, min(n, 64<<10))
	for n > 0 {
		got, err := unix.Read(in.pipe, b[:min(n, len(b))])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if got <= 0 {
			return
		}
		n -= got
	}
}

// release gives up the pipe of a program that is over. The caller holds p.mu.
func (in *input) release() {
	if in.pipe >= 0 {
		unix.Close(in.pipe)
		in.pipe = -1
	}
}
