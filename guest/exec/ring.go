package exec

import "sync/atomic"

// minRing is the capacity that a ring may always have, whatever the budget.
const minRing = 4 << 10

// budget is the memory that all rings of a manager may use beyond minRing
// bytes each.
type budget struct {
	total int64
	used  atomic.Int64
}

func (b *budget) take(n int) bool {
	for {
		used := b.used.Load()
		if used+int64(n) > b.total {
			return false
		}
		if b.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }

// scarce tells that idle rings should return what they hold.
func (b *budget) scarce() bool { return b.used.Load() > b.total/2 }

// ring holds the bytes [base, end) of a stream. Byte i lies at i modulo the
// capacity, which grows by doubling up to max.
type ring struct {
	buf       []byte
	max       int
	base, end uint64
	budget    *budget
}

func (r *ring) held() int { return int(r.end - r.base) }

// space is where the next bytes go: as much as is free in one piece, none when
// the ring is full. commit makes the first n of them part of the ring.
func (r *ring) space() []byte {
	if r.held() == len(r.buf) && !r.grow() {
		return nil
	}
	at := int(r.end % uint64(len(r.buf)))
	return r.buf[at : at+min(len(r.buf)-r.held(), len(r.buf)-at)]
}

func (r *ring) commit(n int) { r.end += uint64(n) }

// read copies bytes from offset off on and tells how many.
func (r *ring) read(off uint64, p []byte) int {
	want := min(len(p), int(r.end-off))
	for done := 0; done < want; {
		at := int((off + uint64(done)) % uint64(len(r.buf)))
		done += copy(p[done:want], r.buf[at:])
	}
	return want
}

// drop forgets the bytes before offset to.
func (r *ring) drop(to uint64) {
	r.base = max(r.base, to)
	if r.base == r.end && r.budget.scarce() {
		r.resize(0)
	}
}

// fit gives back what is not in use, for a stream that gets no more bytes.
func (r *ring) fit() { r.resize(r.held()) }

func (r *ring) grow() bool {
	if len(r.buf) >= r.max {
		return false
	}
	return r.resize(min(r.max, max(2*len(r.buf), minRing))) ||
		len(r.buf) < minRing && r.resize(min(r.max, minRing))
}

func (r *ring) resize(size int) bool {
	switch cost := charged(size) - charged(len(r.buf)); {
	case cost > 0 && !r.budget.take(cost):
		return false
	case cost < 0:
		r.budget.give(-cost)
	}
	next := ring{base: r.base, end: r.base}
	if size > 0 {
		next.buf = make([]byte, size)
	}
	for next.end < r.end {
		n := r.read(next.end, next.space())
		next.commit(n)
	}
	r.buf = next.buf
	return true
}

func charged(size int) int { return max(0, size-minRing) }
