package daemon_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestCollect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir)
	s := store(t, dir)
	asleep, line, timeline := protocol.NewSandboxID(), protocol.NewLineID(), protocol.NewTimelineID()
	base, loose := addBase(t, s, checkpoint.Origin{}), addBase(t, s, checkpoint.Origin{})
	internal := func(m *checkpoint.Manifest) { m.Class = checkpoint.ClassInternal }
	wakes := publish(t, s, base, asleep, internal)
	over := publish(t, s, base, asleep, internal)
	foreign := publish(t, s, base, protocol.NewSandboxID(), internal)
	named := publish(t, s, base, protocol.NewSandboxID(), nil)
	expired := publish(t, s, base, protocol.NewSandboxID(), func(m *checkpoint.Manifest) { m.Expires = time.Now().Add(-time.Second) })
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	record(t, dir, sandbox.SandboxRecord{ID: asleep, FirstLine: line, State: sandbox.StateHibernated},
		sandbox.LineRecord{ID: line, Node: "0", Timeline: timeline},
		sandbox.TimelineRecord{ID: timeline, Line: line, State: sandbox.StateHibernated, Hibernated: &sandbox.Hibernated{Checkpoint: wakes}})
	d = open(t, dir)

	c, err := d.Collect(t.Context())
	want := daemon.Collected{Expired: []protocol.CheckpointID{expired}, Collected: machine.Collected{Templates: []protocol.BaseID{},
		Collected: checkpoint.Collected{Checkpoints: []protocol.CheckpointID{over, foreign}, Bases: []protocol.BaseID{loose}}}}
	sorted := cmpopts.SortSlices(func(a, b protocol.CheckpointID) bool { return a < b })
	if d := cmp.Diff(want, c, sorted, cmpopts.IgnoreFields(checkpoint.Collected{}, "Freed")); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if c.Freed < 1<<20 {
		t.Errorf("freed %d bytes", c.Freed)
	}
	for _, id := range []protocol.CheckpointID{wakes, named} {
		if err := s.Check(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	// Many at once, and with imports and removals beside them.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := d.Collect(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
