package memory

// Start is how children are started from one capture.
type Start int

const (
	// ApplyEach copies the delta into every child.
	ApplyEach Start = iota
	// NewBase makes one base of base and delta first, which the children map.
	NewBase
)

func (s Start) String() string {
	if s == NewBase {
		return "new base"
	}
	return "apply to each"
}

// Cost is what choosing depends on.
type Cost struct {
	// DeltaBytes is the size of the delta's file.
	DeltaBytes int64
	// CopyBytes is what a new base must copy besides: the base's DataBytes,
	// or 0 where the VMM maps the file itself and the filesystem has reflinks.
	CopyBytes int64
	// Children is how many are to be started.
	Children int
}

// Rates on which Choose depends, in bytes a second; their ratio matters more
// than their size. From BenchmarkApply and BenchmarkFlattenMemfd on two cores
// at 2 GHz: applying takes a page fault and a new page a page, filling a memfd
// the new page only.
const (
	applyRate = 0.8 * (1 << 30)
	copyRate  = 1.0 * (1 << 30)
)

// memoryPrice is how many seconds a byte of host memory counts, so that
// copies which live as long as the children do weigh more than their making:
// 1 GiB kept is as bad as 1 s of delay.
const memoryPrice = 1.0 / (1 << 30)

// minDelta: below it a new base is not worth its file, whatever n is.
const minDelta = 1 << 20

// Choose tells which way is cheaper, in time before all children run and in
// memory while they do.
func (c Cost) Choose() Start {
	if c.Children < 2 || c.DeltaBytes < minDelta {
		return ApplyEach
	}
	each := float64(c.DeltaBytes) * float64(c.Children) * (1.0/applyRate + memoryPrice)
	once := float64(c.DeltaBytes+c.CopyBytes) * (1.0/copyRate + memoryPrice)
	if once < each {
		return NewBase
	}
	return ApplyEach
}
