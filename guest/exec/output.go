package exec

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// fillRounds bounds how long one fill holds the lock when a writer is faster
// than the reader.
const fillRounds = 64

// output is one output stream of a program. All but file, conn and room is
// guarded by program.mu.
type output struct {
	name string
	file *os.File        // nil for the standard error of a terminal
	conn syscall.RawConn // of file, which does not block
	room chan struct{}   // has a value when a reader that stopped may go on

	ring    ring
	tail    []byte // last bytes, at most MaxStderrTail; nil when not kept
	keep    bool   // tail is kept
	ended   bool   // no byte will come any more
	discard bool   // bytes that come are thrown away
	must    uint64 // after the grace: complete when the ring reaches it
}

func newOutput(name string, file *os.File, r ring) (*output, error) {
	o := &output{name: name, file: file, room: make(chan struct{}, 1), ring: r}
	if file == nil {
		o.ended = true
		return o, nil
	}
	conn, err := file.SyscallConn()
	o.conn = conn
	return o, err
}

// filled says why fill stopped.
type filled int

const (
	filledEmpty filled = iota // nothing to read now
	filledFull                // no room, or reading is held
	filledEnded
	filledMore // the writer is fast; call again
)

// fill moves bytes from the pipe to the ring. The caller holds p.mu.
func (p *program) fill(o *output, fd int) filled {
	var scratch []byte
	for range fillRounds {
		if o.ended {
			return filledEnded
		}
		into := scratch
		switch {
		case !o.discard:
			into = o.ring.space()
		case scratch == nil:
			scratch = make([]byte, 4<<10)
			into = scratch
		}
		if len(into) == 0 {
			return filledFull
		}
		n, err := unix.Read(fd, into)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return filledEmpty
		case err != nil || n == 0: // EIO is a terminal's end
			o.ended = true
			p.changed()
			return filledEnded
		}
		if !o.discard {
			o.note(into[:n])
			o.ring.commit(n)
			p.changed()
		}
	}
	return filledMore
}

// note keeps the tail.
func (o *output) note(b []byte) {
	if !o.keep {
		return
	}
	if len(b) > protocol.MaxStderrTail {
		b = b[len(b)-protocol.MaxStderrTail:]
	}
	if over := len(o.tail) + len(b) - protocol.MaxStderrTail; over > 0 {
		o.tail = append(o.tail[:0], o.tail[over:]...)
	}
	o.tail = append(o.tail, b...)
}

// pull reads one stream until its end.
func (p *program) pull(o *output) {
	defer p.readers.Done()
	defer o.file.Close()
	for {
		var got filled
		err := o.conn.Read(func(fd uintptr) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			if got = filledFull; !p.held {
				got = p.fill(o, int(fd))
			}
			return got != filledEmpty
		})
		if err != nil {
			p.mu.Lock()
			o.ended = true
			p.changed()
			p.mu.Unlock()
			return
		}
		switch got {
		case filledEnded:
			return
		case filledFull:
			<-o.room
		}
	}
}

// pump is pull for one moment, also while reading is held.
func (p *program) pump(o *output) {
	if o.file == nil {
		return
	}
	// An error means that the file is closed, so that nothing is left in it.
	o.conn.Control(func(fd uintptr) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for p.fill(o, int(fd)) == filledMore {
			continue
		}
	})
}

// mark ends the grace: what is in the pipe now is the last that counts.
func (p *program) mark(o *output) {
	if o.file == nil {
		return
	}
	o.conn.Control(func(fd uintptr) {
		p.mu.Lock()
		defer p.mu.Unlock()
		o.must = o.ring.end + o.queued(int(fd))
	})
}

// queued is how much is in the pipe.
func (o *output) queued(fd int) uint64 {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return uint64(n)
}

// written is how much of each output exists, also in the pipes.
func (p *program) written() (to [2]uint64) {
	for i, o := range p.outs {
		p.mu.Lock()
		to[i] = o.ring.end
		p.mu.Unlock()
		if o.file == nil {
			continue
		}
		// An error means that the file is closed, so that nothing is left in it.
		o.conn.Control(func(fd uintptr) {
			p.mu.Lock()
			defer p.mu.Unlock()
			to[i] = o.ring.end + o.queued(int(fd))
		})
	}
	return to
}

// delivered tells whether the host has the output up to some offsets, or will
// not take it.
func (p *program) delivered(to [2]uint64, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range p.outs {
		if o.ended || o.discard {
			to[i] = min(to[i], o.ring.end) // no more will come
		}
	}
	if p.outs[0].ring.base >= to[0] && p.outs[1].ring.base >= to[1] {
		return true
	}
	if p.session != nil || p.held {
		return false
	}
	if p.alone.After(since) {
		since = p.alone
	}
	return time.Since(since) > unfollowed
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
