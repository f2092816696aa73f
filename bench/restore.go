package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Depths of the chain of snapshots.
var depths = []int{1, 2, 4, 8, 12, 16, 20, 24, 28, 32}

const newPerLevel = 10 // MiB

// measureRestore restores checkpoints that lie ever deeper in a chain.
func measureRestore(ctx context.Context, l *lab, r *report) (err error) {
	b, err := l.open(ctx, 512, sandbox.Limits{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	deepest := depths[len(depths)-1]
	g := b.python(ctx, "depth.py", strconv.Itoa(deepest), strconv.Itoa(newPerLevel))
	ids := map[int]protocol.CheckpointID{}
	for level := 1; level <= deepest; level++ {
		text, _, err := g.await(ctx, "level")
		if err != nil {
			return err
		}
		fields := strings.Fields(text)
		ids[level] = protocol.CheckpointID(fields[1])
	}
	t := r.table("Restore against depth", fmt.Sprintf("Guest of 512 MiB, a chain of snapshots with %d MiB of new memory in each. From the operator's call to the thaw of the new\n"+
		"machine; the old one is stopped but not kept. What a checkpoint holds starts again with each new base.", newPerLevel),
		"depth", "in the checkpoint", "restore p50", "of it load")
	var x, y []float64
	for _, depth := range depths {
		cp, err := b.store.Get(ctx, ids[depth])
		if err != nil {
			return err
		}
		var total, load sample
		for range l.pick(7, 3) {
			b.take()
			began := time.Now()
			if err := b.sb.Restore(ctx, "", ids[depth], sandbox.RestoreOptions{DropPresent: true}); err != nil {
				return err
			}
			total = append(total, time.Since(began))
			marks := b.take()
			load = append(load, span(marks, "load begins", "load"))
		}
		t.add(strconv.Itoa(depth), mebibytes(float64(cp.Bytes)), millis(total.median()), millis(load.median()))
		x, y = append(x, float64(depth)), append(y, ms(total.median()))
	}
	r.figure(figure{name: "restore at depth 32 against depth 1", measured: fmt.Sprintf("%.0f ms", y[len(y)-1]), baseline: fmt.Sprintf("%.0f ms at depth 1", y[0]),
		ratio: fmt.Sprintf("%s of it; %.1f ms a level", times(y[len(y)-1]/y[0]), slope(x, y))})
	return nil
}

// span is the time from the first mark of one name to the last of another.
func span(marks []mark, from, to string) time.Duration {
	var begin, end time.Time
	for _, m := range marks {
		if m.name == from && begin.IsZero() {
			begin = m.at
		}
		if m.name == to {
			end = m.at
		}
	}
	return end.Sub(begin)
}

// within marks the steps inside of the next load.
func (t *trace) within() {
	for label, name := range map[string]string{
		"qemu.start": "open files", "memory.apply": "start of the process", "qmp.getfd": "apply the delta", "qmp.cont": "load of the device state",
	} {
		fault.Set(label, 1, func(string) error {
			t.mark(name, "")
			return nil
		})
	}
}

// measureFloor compares a restore of an idle machine with the least that any
// could take.
func measureFloor(ctx context.Context, l *lab, r *report) (err error) {
	b, err := l.open(ctx, 256, sandbox.Limits{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	b.start(ctx, "sleep", "3600")
	id, err := b.sb.Snapshot(ctx, "", sandbox.SnapshotOptions{})
	if err != nil {
		return err
	}
	var all []steps
	for range l.pick(20, 6) {
		b.take()
		b.within()
		b.mark("restore", "")
		if err := b.sb.Restore(ctx, "", id, sandbox.RestoreOptions{DropPresent: true}); err != nil {
			return err
		}
		all = append(all, between(b.take()))
	}
	start, load := step(all, "start of the process").median(), step(all, "load of the device state").median()
	trip := r.roundTrip
	floor := start + load + trip
	total := totals(all).median()
	r.figure(figure{name: "restore of an idle machine", measured: millis(total), baseline: millis(floor) + " floor: process, state, one round trip", ratio: times(ms(total)/ms(floor)) + " of it"})
	t := r.table("Distance to the floor", fmt.Sprintf("Restore of an idle machine of 256 MiB, medians of %d. The floor is the start of the process, the load of the device state and\n"+
		"one round trip (%s); a share is of the whole. Steps of the same name are added up, those under 0.1 ms left out.", len(all), millis(trip)), "step", "p50", "share", "floor")
	for _, name := range all[0].names {
		m := step(all, name).median()
		in := ""
		if name == "start of the process" || name == "load of the device state" {
			in = "yes"
		}
		if m < 100*time.Microsecond {
			continue
		}
		t.add(name, millis(m), fmt.Sprintf("%.0f %%", 100*ms(m)/ms(total)), in)
	}
	t.add("**all**", millis(total), "", millis(floor))
	return nil
}
