package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/protocol"
)

// store opens the store of the daemon in a state directory, beside it.
func store(t *testing.T, dir string) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(filepath.Join(dir, "daemon"), checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func addBase(t *testing.T, s *checkpoint.Store, from checkpoint.Origin) protocol.BaseID {
	t.Helper()
	id := protocol.NewBaseID()
	b, err := s.BeginBase(id)
	if err == nil {
		err = errors.Join(os.WriteFile(b.RAMPath(), make([]byte, 1<<20), 0o600), b.Publish(t.Context(), checkpoint.BaseManifest{ID: id, From: from}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// publish adds a checkpoint of a sandbox over a base.
func publish(t *testing.T, s *checkpoint.Store, base protocol.BaseID, sandbox protocol.SandboxID, change func(*checkpoint.Manifest)) protocol.CheckpointID {
	t.Helper()
	m := checkpoint.Manifest{ID: protocol.NewCheckpointID(), Class: checkpoint.ClassNamed, Created: time.Now(), Sandbox: sandbox, Timeline: protocol.NewTimelineID(),
		Line: protocol.NewLineID(), Node: "0", Freeze: 1, Base: base, Machine: checkpoint.Machine{MemoryBytes: 1 << 20, CPUs: 1}}
	if change != nil {
		change(&m)
	}
	p, err := s.Begin(m.ID)
	if err == nil {
		err = errors.Join(os.WriteFile(p.StatePath(), []byte("state"), 0o600), p.Publish(t.Context(), m))
	}
	if err != nil {
		t.Fatal(err)
	}
	return m.ID
}

func left(t *testing.T, d *daemon.Daemon) map[protocol.CheckpointID]bool {
	t.Helper()
	list, err := d.Checkpoints()
	if err != nil {
		t.Fatal(err)
	}
	out := map[protocol.CheckpointID]bool{}
	for _, m := range list {
		out[m.ID] = true
	}
	return out
}

// record writes a sandbox into the journal of a daemon that is closed.
func record(t *testing.T, dir string, s sandbox.SandboxRecord, l sandbox.LineRecord, tl sandbox.TimelineRecord) {
	t.Helper()
	st, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	run, err := st.Daemon()
	if err != nil {
		t.Fatal(err)
	}
	err = run.Journal.Sandbox(s.ID).Update("journal.test", func(tx sandbox.Tx) error {
		put := func(table, key string, v any) error {
			b, err := json.Marshal(v)
			return errors.Join(err, tx.Put(table, key, b))
		}
		return errors.Join(put("sandbox", string(s.ID), s), put("line", string(l.ID), l), put("timeline", string(tl.ID), tl))
	})
	if err := errors.Join(err, run.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestRetain: what expires goes, but not what is pinned, what others are based
// on, or what a hibernated sandbox will wake from.
func TestRetain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A stopped sandbox whose timeline is hibernated.
	asleep, line, timeline := protocol.NewSandboxID(), protocol.NewLineID(), protocol.NewTimelineID()
	d := open(t, dir)
	s := store(t, dir)
	base := addBase(t, s, checkpoint.Origin{})
	soon := func(m *checkpoint.Manifest) { m.Expires = time.Now().Add(time.Hour) }
	foreign := protocol.NewSandboxID()
	goes := publish(t, s, base, foreign, soon)
	stays := publish(t, s, base, foreign, nil)
	auto := publish(t, s, base, foreign, func(m *checkpoint.Manifest) { m.Class = checkpoint.ClassAuto })
	pinned := publish(t, s, base, foreign, soon)
	under := publish(t, s, base, foreign, soon)
	over := publish(t, s, addBase(t, s, checkpoint.Origin{Base: base, Checkpoint: under}), foreign, nil)
	wakes := publish(t, s, base, asleep, soon)
	if err := errors.Join(d.Pin(t.Context(), pinned, true), d.Close()); err != nil {
		t.Fatal(err)
	}
	record(t, dir, sandbox.SandboxRecord{ID: asleep, FirstLine: line, State: sandbox.StateHibernated},
		sandbox.LineRecord{ID: line, Node: "0", Timeline: timeline},
		sandbox.TimelineRecord{ID: timeline, Line: line, State: sandbox.StateHibernated, Hibernated: &sandbox.Hibernated{Checkpoint: wakes}})
	d = open(t, dir)

	now := time.Now()
	if removed, err := d.Retain(t.Context(), now); err != nil || removed != nil {
		t.Fatalf("before their time: %v, %v", removed, err)
	}
	removed, err := d.Retain(t.Context(), now.Add(2*time.Hour))
	if d := cmp.Diff([]protocol.CheckpointID{goes}, removed); d != "" || err != nil {
		t.Errorf("%v, removed (-want +got):\n%s", err, d)
	}
	if diff := cmp.Diff(map[protocol.CheckpointID]bool{stays: true, auto: true, pinned: true, under: true, over: true, wakes: true}, left(t, d)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	inUse := protocol.Errorf(protocol.CodeCheckpointInUse, "")
	for name, id := range map[string]protocol.CheckpointID{"pinned": pinned, "under another": under, "of a hibernated sandbox": wakes} {
		if err := d.RemoveCheckpoint(t.Context(), id); !errors.Is(err, inUse) {
			t.Errorf("remove one that is %s: %v", name, err)
		}
	}
	// All that is based on it goes with it, unless some of it must stay.
	if err := d.Pin(t.Context(), over, true); err != nil {
		t.Fatal(err)
	}
	if removed, err := d.RemoveCheckpoints(t.Context(), under); !errors.Is(err, inUse) || removed != nil {
		t.Errorf("with a pinned one: %v, %v", removed, err)
	}
	if err := errors.Join(d.Pin(t.Context(), over, false), d.Pin(t.Context(), pinned, false)); err != nil {
		t.Fatal(err)
	}
	removed, err = d.RemoveCheckpoints(t.Context(), under)
	if d := cmp.Diff([]protocol.CheckpointID{over, under}, removed); d != "" || err != nil {
		t.Errorf("cascade: %v (-want +got):\n%s", err, d)
	}
	if err := d.RemoveCheckpoint(t.Context(), pinned); err != nil {
		t.Errorf("after it was unpinned: %v", err)
	}
	// The sandbox goes, and what it has pinned stays.
	if err := d.Pin(t.Context(), wakes, true); err != nil {
		t.Fatal(err)
	}
	sb, err := d.Sandbox(string(asleep))
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[protocol.CheckpointID]bool{stays: true, auto: true, wakes: true}, left(t, d)); diff != "" {
		t.Errorf("left at last (-want +got):\n%s", diff)
	}
}

// TestSpill: beyond the hot ones the oldest are compacted; one that is damaged
// hinders no other.
func TestSpill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	st, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Open(t.Context(), daemon.Options{Dir: st, Driver: noVMM{}, Limits: daemon.Limits{HotBytes: 12},
		Boot: func(context.Context, func(string)) (machine.Boot, error) { return machine.Boot{}, errors.New("none") }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := store(t, dir)
	base, sb := addBase(t, s, checkpoint.Origin{}), protocol.NewSandboxID()
	var ids []protocol.CheckpointID
	for i := range 5 { // of 5 bytes each
		ids = append(ids, publish(t, s, base, sb, func(m *checkpoint.Manifest) { m.Created = time.Now().Add(time.Duration(i-9) * time.Minute) }))
	}
	if err := os.Remove(filepath.Join(dir, "daemon", "checkpoints", string(ids[1]), "state")); err != nil {
		t.Fatal(err)
	}
	spilled, err := d.Spill(t.Context())
	if d := cmp.Diff([]protocol.CheckpointID{ids[0], ids[2]}, spilled); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	for i, id := range ids {
		if m, err := s.Get(id); i != 1 && (err != nil || (m.Files.Frames != nil) != (i < 3)) {
			t.Errorf("checkpoint %d: %+v, %v", i, m.Files, err)
		}
	}
	if spilled, err := d.Spill(t.Context()); err != nil || spilled != nil {
		t.Errorf("again: %v, %v", spilled, err)
	}
}
