package exec

// Ring opens the ring to its tests.
type Ring struct {
	r ring
	b *budget
}

func NewRing(size int, total int64) *Ring {
	b := &budget{total: total}
	return &Ring{r: ring{max: size, budget: b}, b: b}
}

// Fill writes as much of p as there is room for.
func (r *Ring) Fill(p []byte) int {
	done := 0
	for done < len(p) {
		n := copy(r.r.space(), p[done:])
		if n == 0 {
			break
		}
		r.r.commit(n)
		done += n
	}
	return done
}

func (r *Ring) Read(off uint64, p []byte) int { return r.r.read(off, p) }
func (r *Ring) Drop(to uint64)                { r.r.drop(to) }
func (r *Ring) Fit()                          { r.r.fit() }
func (r *Ring) Span() (base, end uint64)      { return r.r.base, r.r.end }
func (r *Ring) Used() int64                   { return r.b.used.Load() }
func (r *Ring) Capacity() int                 { return len(r.r.buf) }

// RingUse is the memory of all rings beyond their minimum.
func (m *Manager) RingUse() int64 { return m.budget.used.Load() }

// Live is how many programs have a process or a pipe left.
func (m *Manager) Live() int { return len(m.running()) }

// StartError is what is told when fork or execve gives err.
func StartError(err error) error {
	return startError(&plan{argv: []string{"prog"}, file: "/bin/prog", dir: "/"}, err)
}

// MaxLive and MaxKept are the bounds of a Manager.
const (
	MaxLive = maxLive
	MaxKept = maxKept
)
