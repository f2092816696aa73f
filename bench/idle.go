package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
)

// measureIdle looks at the memory of children that do nothing.
func measureIdle(ctx context.Context, l *lab, r *report) error {
	t := r.table("Memory of idle children", "Guest of 256 MiB. Private guest RAM is what a child has written, or had applied; PSS is of its whole VMM. MemAvailable is the\n"+
		"difference to before the branch, so it holds the children's common base too.", "children", "after", "private guest RAM p50", "max", "PSS p50", "MemAvailable per child")
	counts := []int{16}
	if l.long {
		counts = append(counts, 64)
	}
	for _, n := range counts {
		if err := l.idle(ctx, r, t, n); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) idle(ctx context.Context, r *report, t *table, n int) (err error) {
	b, err := l.open(ctx, 256, sandbox.Limits{Live: n + 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	// The parent's own start is not the children's cost.
	if err := b.start(ctx, "python3", "-c", "import ratoon").end(ctx); err != nil {
		return err
	}
	before, err := meminfo("MemAvailable")
	if err != nil {
		return err
	}
	g := b.python(ctx, "idle.py", strconv.Itoa(n))
	if _, _, err := g.await(ctx, "branched"); err != nil {
		return err
	}
	waits := []time.Duration{10 * time.Second}
	if l.long {
		waits = append(waits, 5*time.Minute)
	}
	began := time.Now()
	for i, wait := range waits {
		select {
		case <-time.After(time.Until(began.Add(wait))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		after, err := meminfo("MemAvailable")
		if err != nil {
			return err
		}
		private, whole, err := b.footprint(n)
		if err != nil {
			return err
		}
		middle := float64(private[n/2])
		t.add(strconv.Itoa(n), wait.String(), mebibytes(middle), mebibytes(float64(private[n-1])), mebibytes(float64(whole[n/2])),
			mebibytes(float64(before-after)/float64(n)))
		if i == 0 && n == 16 {
			r.figure(figure{name: "private guest RAM of an idle child after 10 s (p50)", measured: mebibytes(middle), baseline: "256 MiB of guest RAM",
				ratio: times(256 * (1 << 20) / middle), target: "4 MiB", met: met(middle <= 4<<20)})
		}
	}
	return nil
}

// footprint is the memory of the n children, sorted.
func (b *box) footprint(n int) (private, whole []int64, err error) {
	vms := b.machines()
	if len(vms) != n+1 {
		return nil, nil, fmt.Errorf("%d machines run, want %d", len(vms), n+1)
	}
	for _, vm := range vms[1:] {
		p, err := privateRAM(vm.PID())
		if err != nil {
			return nil, nil, err
		}
		w, err := pss(vm.PID())
		if err != nil {
			return nil, nil, err
		}
		private, whole = append(private, p), append(whole, w)
	}
	slices.Sort(private)
	slices.Sort(whole)
	return private, whole, nil
}
