package qemu

import (
	"io"
	"sync"
)

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	size int // of buf, once full
	at   int // where the oldest byte is, once full
}

func newTail(size int) *tail { return &tail{size: size} }

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) >= t.size {
		t.buf, t.at = append(t.buf[:0], p[len(p)-t.size:]...), 0
		return n, nil
	}
	room := min(t.size-len(t.buf), len(p))
	t.buf, p = append(t.buf, p[:room]...), p[room:]
	for len(p) > 0 {
		k := copy(t.buf[t.at:], p)
		t.at, p = (t.at+k)%t.size, p[k:]
	}
	return n, nil
}

// bytes is a copy of what is kept, oldest first.
func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]byte, 0, len(t.buf))
	return append(append(out, t.buf[t.at:]...), t.buf[:t.at]...)
}

// drain keeps the tail of r until its end, and closes it.
func (t *tail) drain(r io.ReadCloser) {
	defer r.Close()
	io.CopyBuffer(struct{ io.Writer }{t}, struct{ io.Reader }{r}, make([]byte, 16<<10))
}
