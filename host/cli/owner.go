package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/protocol"
)

// change is something that is done to one checkpoint, by whoever owns it.
type change struct {
	// remote asks ratoond, which serves the directory.
	remote func(context.Context, *admin.Client, protocol.CheckpointID) error
	// local does it in a directory whose process has ended.
	local func(context.Context, ended, protocol.CheckpointID) error
}

// ended is a directory whose process has ended, taken over.
type ended struct {
	*checkpoint.Store
	run    *state.Run
	daemon bool // it is ratoond's, whose sandboxes may be woken again
}

// remove removes a checkpoint, unless a sandbox of ratoond's needs it. To an
// ended run what its operations needed is no use.
func (e ended) remove(id protocol.CheckpointID) error {
	if m, err := e.Get(id); err == nil && e.daemon {
		needed, err := sandbox.Needed(e.run.Journal.Sandbox(m.Sandbox))
		if err != nil {
			return err
		}
		if needed[id] {
			return protocol.Errorf(protocol.CodeCheckpointInUse, "checkpoint %s is needed by an operation, a result or a hibernated timeline", id)
		}
	}
	return e.Remove(id)
}

// changeAll does it to each of the named.
func (g *global) changeAll(ctx context.Context, names []string, c change) error {
	dir, err := g.state()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, g.changeOne(ctx, dir, name, c))
	}
	return errors.Join(errs...)
}

func (g *global) changeOne(ctx context.Context, dir *state.Dir, name string, c change) error {
	s, err := g.find(dir, name)
	if err != nil {
		return err
	}
	run, err := dir.Take(s.Run)
	switch {
	case protocol.CodeOf(err) == protocol.CodeBusy && s.Run == dir.DaemonPath():
		client, err := g.admin(ctx)
		if err != nil {
			return err
		}
		return c.remote(ctx, client, s.ID)
	case protocol.CodeOf(err) == protocol.CodeBusy:
		return protocol.Errorf(protocol.CodeBusy, "checkpoint %s belongs to the running sandbox %s", s.ID, s.Sandbox)
	case err != nil:
		return err
	}
	store, err := checkpoint.Open(s.Run, checkpoint.Options{Log: g.log()})
	if err == nil {
		e := ended{store, run, s.Run == dir.DaemonPath()}
		if err = c.local(ctx, e, s.ID); err == nil {
			return e.tidy()
		}
	}
	return errors.Join(err, run.Close())
}

// tidy ends the work on the directory. That of a run goes with the last
// checkpoint that can be used. Ratoond's knows which bases its machines map.
func (e ended) tidy() error {
	if e.daemon {
		return e.run.Close()
	}
	left, _, err := e.List()
	if err == nil && !slices.ContainsFunc(left, func(m checkpoint.Manifest) bool { return m.Class != checkpoint.ClassInternal }) {
		return e.run.Remove()
	}
	if err == nil {
		_, err = e.SweepBases(nil)
	}
	if err == nil {
		_, err = e.SweepObjects()
	}
	return errors.Join(err, e.run.Close())
}
