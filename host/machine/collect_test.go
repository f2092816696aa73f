package machine_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// unused makes a template one that nobody has looked for since long ago.
func unused(t *testing.T, dir string, id protocol.BaseID) {
	t.Helper()
	past := time.Now().Add(-8 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "bases", string(id)), past, past); err != nil {
		t.Fatal(err)
	}
}

// What machines map, what checkpoints lie over and what was looked for lately
// stays.
func TestCollect(t *testing.T) {
	t.Parallel()
	m, dir := engine(t, &driver{})
	const recent, old, running = "ba-nnnnnnnnnnnnnnnn", "ba-oooooooooooooooo", "ba-rrrrrrrrrrrrrrrr"
	for _, id := range []protocol.BaseID{recent, old, running} {
		writeTemplate(t, dir, id)
	}
	v, err := m.Load(t.Context(), sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: "cp-rrrrrrrrrrrrrrrr"})
	if err != nil {
		t.Fatal(err)
	}
	unused(t, dir, old)
	unused(t, dir, running)
	unused(t, dir, base)
	collect := func(want ...protocol.BaseID) {
		t.Helper()
		c, err := m.Collect(t.Context(), nil)
		if d := cmp.Diff(append([]protocol.BaseID{}, want...), c.Bases); d != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
	}
	collect(old)
	if err := v.Kill(); err != nil {
		t.Fatal(err)
	}
	collect(running)
	if err := m.Remove(from); err != nil {
		t.Fatal(err)
	}
	collect() // went with the checkpoint
}

func lock(t *testing.T, path string) (unlock func()) {
	t.Helper()
	unlock, err := machine.TryLock(path, unix.LOCK_EX)
	if unlock == nil {
		t.Fatalf("lock %s: %v", path, err)
	}
	return unlock
}

func TestPruneTemplates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const recent, old, damaged, building = "ba-aaaaaaaaaaaaaaaa", "ba-bbbbbbbbbbbbbbbb", "ba-cccccccccccccccc", "ba-dddddddddddddddd"
	for _, id := range []protocol.BaseID{recent, old, damaged} {
		writeTemplate(t, dir, id)
	}
	unused(t, dir, old)
	cache, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "bases", damaged, "ram"), 5); err != nil {
		t.Fatal(err)
	}
	// Somebody holds the lock of the key that all of them have.
	unlock := lock(t, filepath.Join(dir, "key.lock"))
	removed, _, err := machine.PruneTemplates(dir, slog.New(slog.DiscardHandler))
	if d := cmp.Diff([]protocol.BaseID{damaged}, removed); d != "" || err != nil {
		t.Errorf("while it is looked for: %v (-want +got):\n%s", err, d)
	}
	unlock()
	// What is being built stays.
	unlock = lock(t, filepath.Join(dir, "building.lock"))
	p, err := cache.BeginBase(building)
	if err != nil {
		t.Fatal(err)
	}
	removed, freed, err := machine.PruneTemplates(dir, slog.New(slog.DiscardHandler))
	if d := cmp.Diff([]protocol.BaseID{old}, removed); d != "" || err != nil || freed < 1<<20 {
		t.Errorf("%v, %d bytes (-want +got):\n%s", err, freed, d)
	}
	if _, err := os.Stat(filepath.Dir(p.RAMPath())); err != nil {
		t.Errorf("what is being built: %v", err)
	}
	unlock()
	if _, err := cache.Base(recent); err != nil {
		t.Errorf("the recent one: %v", err)
	}
	if _, _, err := machine.PruneTemplates(dir, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(p.RAMPath())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed builder left: %v", err)
	}
}
