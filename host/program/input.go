package program

import (
	"io"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// inputAhead is how much input is read before a guest has taken it.
const inputAhead = 64 << 10

// input is the line's standard input, in host offsets. A timeline counts
// from its own base: the host offset at which its offset 0 would be.
type input struct {
	mu     sync.Mutex // guards what follows
	cond   *sync.Cond
	buf    []byte // input from start on
	start  int64
	end    bool
	base   map[protocol.TimelineID]int64
	reader sync.Once
	src    io.Reader
}

func newInput(r io.Reader) *input {
	in := &input{src: r, base: map[protocol.TimelineID]int64{}}
	in.cond = sync.NewCond(&in.mu)
	return in
}

// read fills the buffer. It outlives Follow while the source blocks: a read
// of a terminal cannot be taken back.
func (in *input) read() {
	b := make([]byte, 16<<10)
	for {
		n, err := in.src.Read(b)
		in.mu.Lock()
		in.buf = append(in.buf, b[:n]...)
		if err != nil {
			in.end = true
		}
		in.cond.Broadcast()
		for len(in.buf) >= inputAhead {
			in.cond.Wait()
		}
		done := in.end
		in.mu.Unlock()
		if done {
			return
		}
	}
}

// feed sends a timeline what none has taken, and more as it comes.
func (in *input) feed(st Stream, t protocol.TimelineID, taken uint64, ended <-chan struct{}) {
	in.reader.Do(func() { go in.read() })
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-ended:
		case <-stop:
		}
		in.mu.Lock()
		in.cond.Broadcast()
		in.mu.Unlock()
	}()
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, known := in.base[t]; !known {
		in.base[t] = in.start - int64(taken)
	}
	at := in.base[t] + int64(taken)
	in.drop(at)
	for {
		for at >= in.start+int64(len(in.buf)) && !in.end {
			if isClosed(ended) {
				return
			}
			in.cond.Wait()
		}
		if isClosed(ended) {
			return
		}
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
func (in *input) taken(t protocol.TimelineID, offset uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.drop(in.base[t] + int64(offset))
}

func (in *input) drop(upTo int64) {
	if n := upTo - in.start; n > 0 {
		in.buf = in.buf[min(n, int64(len(in.buf))):]
		in.start = upTo
		in.cond.Broadcast()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
