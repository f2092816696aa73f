package program

import (
	"io"
	"math"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// inputAhead is how much input is read before a guest has taken it.
const inputAhead = 64 << 10

// input is the line's standard input, in host offsets. A timeline counts
// from its own base: the host offset at which its offset 0 would be.
type input struct {
	src    io.Reader
	reader sync.Once

	mu     sync.Mutex // guards what follows
	cond   *sync.Cond
	buf    []byte // input from start on
	start  int64
	end    bool // of the source
	closed bool
	base   map[protocol.TimelineID]int64
}

func newInput(r io.Reader) *input {
	in := &input{src: r, base: map[protocol.TimelineID]int64{}}
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
		for len(in.buf) >= inputAhead && !in.closed {
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

// attach says where a timeline goes on that has taken so much, and drops what
// it has. What its origin had taken before the checkpoint, and nobody heard
// of, is dropped with it.
func (in *input) attach(place Place, taken uint64) (at int64, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	base, known := in.base[place.Timeline]
	if !known {
		if origin, ok := in.base[place.Origin]; ok {
			if err := in.drop(origin, taken); err != nil {
				return 0, err
			}
		}
		base = in.start - int64(taken)
		in.base[place.Timeline] = base
	}
	if err := in.drop(base, taken); err != nil {
		return 0, err
	}
	if at = base + int64(taken); at < in.start {
		return 0, protocol.Errorf(protocol.CodeProtocol, "the guest gives input back that it had taken")
	}
	return at, nil
}

// feed sends a timeline the input from at on, and more as it comes.
func (in *input) feed(st Stream, t protocol.TimelineID, at int64, ended <-chan struct{}) {
	in.reader.Do(func() { go in.read() })
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		for at >= in.start+int64(len(in.buf)) && !in.end && !isClosed(ended) {
			in.cond.Wait()
		}
		if isClosed(ended) {
			return
		}
		at = max(at, in.start) // a guest may say that it took what it was not sent
		data := append([]byte(nil), in.buf[at-in.start:]...)
		end := in.end
		offset := uint64(at - in.base[t])
		in.mu.Unlock()
		err := st.Send(protocol.ExecFrame{Input: &protocol.ExecInput{Offset: offset, Data: data, End: end}})
		in.mu.Lock()
		if err != nil || end {
			return
		}
		at += int64(len(data))
	}
}

// taken drops what a timeline's program has.
func (in *input) taken(t protocol.TimelineID, offset uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.drop(in.base[t], offset)
}

// drop forgets input before the offset of a timeline. The guest says the
// offset: only what was read can have been taken.
func (in *input) drop(base int64, offset uint64) error {
	n := base - in.start + int64(offset)
	if offset > math.MaxInt64/2 || n > int64(len(in.buf)) {
		return protocol.Errorf(protocol.CodeProtocol, "the guest has taken %d bytes of input, which is more than it was given", offset)
	}
	if n > 0 {
		in.buf = in.buf[n:]
		in.start += n
		in.cond.Broadcast()
	}
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
