package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
)

// pausing is one way to be stopped often.
type pausing struct {
	ram              int64 // MiB
	private, written int   // MiB
	rounds           int
	kind             string // new or same memory
}

// paused is what came of it.
type paused struct {
	all  []steps
	gaps sample // as a program in the guest saw them
}

func (l *lab) pause(ctx context.Context, p pausing) (out paused, err error) {
	b, err := l.open(ctx, p.ram, sandbox.Limits{})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	g := b.python(ctx, "pause.py", strconv.Itoa(p.private), strconv.Itoa(p.written), strconv.Itoa(p.rounds), p.kind)
	if _, _, err := g.await(ctx, "ready"); err != nil {
		return out, err
	}
	for range p.rounds {
		text, _, err := g.await(ctx, "gap")
		if err != nil {
			return out, err
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return out, err
		}
		out.gaps = append(out.gaps, time.Duration(n))
	}
	out.all = pauses(b.take())
	if len(out.all) != p.rounds+1 {
		return out, fmt.Errorf("saw %d stops, want %d", len(out.all), p.rounds+1)
	}
	out.all = out.all[1:] // the first was before the rounds
	return out, nil
}

// split tells the stops that moved to a new base from the others.
func split(all []steps) (plain, moved []steps) {
	for _, s := range all {
		if s.rebased() {
			moved = append(moved, s)
		} else {
			plain = append(plain, s)
		}
	}
	return plain, moved
}

func totals(all []steps) sample {
	var out sample
	for _, s := range all {
		out = append(out, s.total)
	}
	return out
}

// step is one step of all, with those that lack it left out.
func step(all []steps, name string) sample {
	var out sample
	for _, s := range all {
		if d, ok := s.took[name]; ok {
			out = append(out, d)
		}
	}
	return out
}

// pauseSteps in their order; between scan + copy and connect either of two
// ways.
var pauseSteps = []string{"quiesce", "pause", "state", "scan + copy", "un-pause", "publish", "journal", "kill", "make a new base", "load", "connect", "hello", "thaw"}

func stepTable(r *report, title, note string, p paused) {
	plain, moved := split(p.all)
	t := r.table(title, note, "step", "p50", "p99", fmt.Sprintf("p50 of the %d that moved to a new base", len(moved)))
	row := func(name string, all, moves sample) {
		cell := func(s sample, q float64) string {
			if len(s) == 0 {
				return ""
			}
			return millis(s.at(q))
		}
		t.add(name, cell(all, 0.5), cell(all, 0.99), cell(moves, 0.5))
	}
	for _, name := range pauseSteps {
		if all, moves := step(plain, name), step(moved, name); len(all)+len(moves) > 0 {
			row(name, all, moves)
		}
	}
	row("**freeze to unfreeze**", totals(plain), totals(moved))
	var gaps sample
	var moveGaps sample
	for i, s := range p.all {
		if s.rebased() {
			moveGaps = append(moveGaps, p.gaps[i])
		} else {
			gaps = append(gaps, p.gaps[i])
		}
	}
	row("gap in a guest's wall clock", gaps, moveGaps)
}

const stepNote = "Each step lasts from the end of the one above it, as seen by the host; the state is saved while memory is copied."

func measurePause(ctx context.Context, l *lab, r *report) error {
	rewritten, err := l.pause(ctx, pausing{ram: 512, written: 10, rounds: l.pick(40, 12), kind: "same"})
	if err != nil {
		return err
	}
	p50 := rewritten.gaps.median()
	r.figure(figure{name: "pause as a program sees it, 10 MiB rewritten since the last snapshot (p50)", measured: millis(p50), target: "60 ms", met: met(p50 <= 60*time.Millisecond)})
	stepTable(r, "Pause: 10 MiB rewritten since the last snapshot", fmt.Sprintf("Guest of 512 MiB, %d snapshots. %s", len(rewritten.all), stepNote), rewritten)

	grown, err := l.pause(ctx, pausing{ram: 512, written: 10, rounds: 20, kind: "new"})
	if err != nil {
		return err
	}
	_, moved := split(grown.all)
	r.figure(figure{name: "the same, 10 MiB new per snapshot over 20 snapshots (p50)", measured: fmt.Sprintf("%s, %d new bases", millis(grown.gaps.median()), len(moved)),
		target: "at least 2 new bases", met: met(len(moved) >= 2)})
	stepTable(r, "Pause: 10 MiB new per snapshot over 20 snapshots", "Guest of 512 MiB. "+stepNote, grown)

	large, err := l.pause(ctx, pausing{ram: 1024, private: 500, written: 10, rounds: l.pick(24, 12), kind: "same"})
	if err != nil {
		return err
	}
	before, after := large.aroundMove()
	p50 = large.gaps.median()
	r.figure(figure{name: "the same, 500 MiB private, 10 MiB changed (p50)", measured: millis(p50), target: "250 ms", met: met(p50 <= 250*time.Millisecond)})
	r.figure(figure{name: "that one after and before a new base (p50)", measured: millis(after.median()), baseline: millis(before.median()) + " before",
		ratio: times(ms(before.median()) / ms(after.median()))})
	stepTable(r, "Pause: 500 MiB private, 10 MiB changed", fmt.Sprintf("Guest of 1 GiB, %d snapshots. %s", len(large.all), stepNote), large)
	return nil
}

// aroundMove are the gaps before the first move to a new base and after it.
func (p paused) aroundMove() (before, after sample) {
	moved := false
	for i, s := range p.all {
		switch {
		case s.rebased():
			moved = true
		case moved:
			after = append(after, p.gaps[i])
		default:
			before = append(before, p.gaps[i])
		}
	}
	return before, after
}

// measureSlope compares guests of little and of much RAM.
func measureSlope(ctx context.Context, l *lab, r *report) error {
	const small, large = 128, 2048
	median := map[int64]time.Duration{}
	copied := map[int64]time.Duration{}
	for _, ram := range []int64{small, large} {
		p, err := l.pause(ctx, pausing{ram: ram, written: 1, rounds: 10, kind: "same"})
		if err != nil {
			return err
		}
		plain, _ := split(p.all)
		median[ram], copied[ram] = p.gaps.median(), step(plain, "scan + copy").median()
	}
	const gib = float64(large-small) / 1024
	r.figure(figure{name: "pause, 2 GiB of RAM against 128 MiB (medians of 10)", measured: millis(median[large]), baseline: millis(median[small]) + " for 128 MiB",
		ratio: fmt.Sprintf("%s of it; %.1f ms a GiB, %.1f in scan + copy", times(ms(median[large])/ms(median[small])),
			(ms(median[large])-ms(median[small]))/gib, (ms(copied[large])-ms(copied[small]))/gib)})
	return nil
}
