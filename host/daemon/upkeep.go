package daemon

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

const (
	// spillEvery is how often checkpoints beyond the hot ones are compacted, and
	// collectEvery how often what nobody needs is removed.
	spillEvery   = time.Minute
	collectEvery = time.Hour
	// niceness of the thread that compacts: machines come first.
	niceness = 10
)

// upkeep keeps the store in order until the daemon closes.
func (d *Daemon) upkeep() {
	// The thread is not given back, and ends with its niceness.
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness); err != nil {
		d.log.Debug("lower the priority of upkeep", "error", err)
	}
	tick := time.NewTicker(spillEvery)
	defer tick.Stop()
	collected := time.Now()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := d.Spill(d.ctx); err != nil && d.ctx.Err() == nil {
			d.log.Warn("compact checkpoints", "error", err)
		}
		if time.Since(collected) >= collectEvery {
			collected = time.Now()
			if _, err := d.Collect(d.ctx); err != nil && d.ctx.Err() == nil {
				d.log.Warn("collect garbage", "error", err)
			}
		}
	}
}

// Spill compacts the checkpoints beyond the hot ones, which makes them durable,
// and returns their ids. One that fails hinders no other; it is tried again the
// next time.
func (d *Daemon) Spill(ctx context.Context) (spilled []protocol.CheckpointID, err error) {
	list, _, err := d.store().List()
	if err != nil {
		return nil, err
	}
	for _, id := range checkpoint.Cold(list, max(0, d.options.Limits.HotBytes), time.Now(), d.madeBases()) {
		if err := context.Cause(ctx); err != nil {
			return spilled, err
		}
		err := d.CompactCheckpoint(ctx, id)
		switch protocol.CodeOf(err) {
		case "":
			spilled = append(spilled, id)
		case protocol.CodeUnknownCheckpoint: // removed meanwhile
		default:
			d.log.Warn("compact checkpoint", "checkpoint", id, "error", err)
		}
	}
	if len(spilled) > 0 {
		d.log.Info("compacted checkpoints", "count", len(spilled))
		err = d.engine.SweepBases()
	}
	return spilled, err
}

// madeBases tells how many bytes a base is that was made from a checkpoint.
// Templates stay anyway.
func (d *Daemon) madeBases() func(protocol.BaseID) int64 {
	sizes := map[protocol.BaseID]int64{}
	list, _, err := d.store().Bases()
	if err != nil {
		d.log.Warn("list bases", "error", err)
	}
	for _, b := range list {
		if b.From.Base != "" {
			sizes[b.ID] = b.RAM.Size
		}
	}
	return func(id protocol.BaseID) int64 { return sizes[id] }
}

// CompactCheckpoint makes a checkpoint durable and stores its pages as frames.
func (d *Daemon) CompactCheckpoint(ctx context.Context, id protocol.CheckpointID) error {
	if err := d.store().MakeDurable(ctx, id); err != nil {
		return err
	}
	return d.store().Compact(ctx, id)
}
