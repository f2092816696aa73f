package program

import (
	"io"
	"math"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// inputAhead is how much input is read before a guest has taken it.
const inputAhead = 64 << 10

// input is the line's standard input. Offsets are the program's, the same in
// every timeline of the line: a restored guest goes on with the input where the
// one it replaces had come.
type input struct {
	src    io.Reader
	reader sync.Once

	mu       sync.Mutex // guards what follows
	cond     *sync.Cond
	buf      []byte // input from start on: the last of what was taken, and what was not
	start    uint64
	taken    uint64 // by the timeline that came farthest
	attached bool   // the program's offsets are known
	end      bool   // of the source
	closed   bool
}

func newInput(r io.Reader) *input {
	in := &input{src: r}
	in.cond = sync.NewCond(&in.mu)
	return in
}

// read fills the buffer until the source ends or the input is closed. It
// outlives Follow while the source blocks: a read of a terminal cannot be
// taken back.
func (in *input) read() {
	b := make([]byte, 16<<10)
	for {
		n, err := in.src.Read(b)
		in.mu.Lock()
		in.buf = append(in.buf, b[:n]...)
		in.end = err != nil
		in.cond.Broadcast()
		for in.limit()-in.taken >= inputAhead && !in.closed {
			in.cond.Wait()
		}
		done := in.end || in.closed
		in.mu.Unlock()
		if done {
			return
		}
	}
}

// wake makes feed look at its ended.
func (in *input) wake() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.cond.Broadcast()
}

func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed, in.buf = true, nil
	in.cond.Broadcast()
}

// limit is the offset behind what was read. The caller holds in.mu.
func (in *input) limit() uint64 { return in.start + uint64(len(in.buf)) }

// attach begins with a guest that says how much its program has taken. In a
// restored timeline that is less than before.
func (in *input) attach(taken uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.attached && taken < math.MaxInt64/2 { // so that no sum overflows
		in.attached = true
		in.start, in.taken = taken, taken
	}
	return in.drop(taken)
}

// feed sends a guest the input from at on, and more as it comes. What is not
// kept any longer is left out.
func (in *input) feed(st Stream, at uint64, ended <-chan struct{}) {
	in.reader.Do(func() { go in.read() })
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		for at >= in.limit() && !in.end && !isClosed(ended) {
			in.cond.Wait()
		}
		if isClosed(ended) {
			return
		}
		at = max(at, in.start) // a guest may say that it took what it was not sent
		data := append([]byte(nil), in.buf[at-in.start:]...)
		end := in.end
		in.mu.Unlock()
		err := st.Send(protocol.ExecFrame{Input: &protocol.ExecInput{Offset: at, Data: data, End: end}})
		in.mu.Lock()
		if err != nil || end {
			return
		}
		at += uint64(len(data))
	}
}

// take notes how much a guest says was taken.
func (in *input) take(offset uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.drop(offset)
}

// drop forgets input that no program can lack: of what was taken, all but the
// last may have been read from the pipe. The guest says the offset: only what
// was read here can have been taken. The caller holds in.mu.
func (in *input) drop(offset uint64) error {
	if offset > in.limit() {
		return protocol.Errorf(protocol.CodeProtocol, "the guest has taken %d bytes of input, which is more than it was given", offset)
	}
	in.taken = max(in.taken, offset)
	if keep := in.taken - min(in.taken, protocol.MaxExecUnread); keep > in.start {
		in.buf = in.buf[keep-in.start:]
		in.start = keep
	}
	in.cond.Broadcast()
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
