package sandbox

import (
	"math"
	"testing"
	"time"
)

// Looks that are long in different ways say more together than the shortest.
func TestReading(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	start := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	slowThere := read(int64(95*ms), at(0), at(100*ms)) // the guest's 0 is at start
	slowBack := read(int64(105*ms), at(100*ms), at(300*ms))
	both := slowThere.and(slowBack)
	if both.span() != 10*ms || both.wall() != at(105*ms).UnixNano() {
		t.Errorf("span %v, %v off", both.span(), time.Duration(both.wall()-at(105*ms).UnixNano()))
	}
	stepped := read(int64(400*ms), at(time.Hour), at(time.Hour+ms))
	if got := both.and(stepped); got != stepped {
		t.Errorf("after a step of the host's clock: %+v", got)
	}
	if old := read(int64(2000*ms), at(2000*ms), at(2100*ms)); both.and(old) != old {
		t.Error("a reading of long ago was used")
	}
	if lie := read(math.MinInt64, at(0), at(100*ms)); lie.wall() != at(50*ms).UnixNano() {
		t.Error("a clock of the guest's invention moved the host's time")
	}
}
