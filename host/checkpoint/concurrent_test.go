package checkpoint_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// ok tells that err is nil or has one of the codes.
func ok(t *testing.T, err error, codes ...protocol.Code) {
	t.Helper()
	if err == nil {
		return
	}
	for _, c := range codes {
		if errors.Is(err, &protocol.Error{Code: c}) {
			return
		}
	}
	t.Errorf("got %v, want nil or one of %v", err, codes)
}

// TestConcurrent publishes, fsyncs, reclasses, lists, sweeps and removes at
// once; readers never see half a checkpoint.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	s := open(t, dir, checkpoint.Options{})
	reader := open(t, dir, checkpoint.Options{ReadOnly: true})
	base := addBase(t, s, checkpoint.Origin{})
	// One checkpoint always stays, so that the base is always in use.
	anchor := publish(t, s, manifest(base))
	stop := make(chan struct{})
	var watchers, workers sync.WaitGroup
	watchers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			list, bad, err := reader.List()
			if err != nil {
				t.Error(err)
			}
			for _, d := range bad {
				t.Errorf("half a checkpoint: %v", d.Err)
			}
			for _, m := range list {
				ok(t, reader.Check(t.Context(), m.ID), protocol.CodeUnknownCheckpoint)
			}
			_, err = s.Sweep(nil)
			ok(t, err)
			ok(t, s.RemoveBase(base), protocol.CodeCheckpointInUse)
			_, err = s.Collect(t.Context(), checkpoint.CollectOptions{Needed: func(checkpoint.Manifest) bool { return true }})
			ok(t, err)
		}
	})
	for range 4 {
		workers.Go(func() {
			for i := range 8 {
				id := protocol.NewCheckpointID()
				ok(t, makeCheckpoint(t.Context(), s, id, base, true))
				var pair sync.WaitGroup
				pair.Go(func() { ok(t, s.MakeDurable(t.Context(), id)) })
				pair.Go(func() { ok(t, s.SetClass(id, checkpoint.ClassInternal)) })
				pair.Wait()
				m, err := s.Get(id)
				if err != nil || !m.Durable || m.Class != checkpoint.ClassInternal {
					t.Errorf("a change was lost: %v, durable %t, class %s", err, m.Durable, m.Class)
				}
				if i%2 == 0 {
					ok(t, s.Remove(id))
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	watchers.Wait()
	check(t, s.Check(t.Context(), anchor))
	removed, err := s.Sweep(func(protocol.CheckpointID) bool { return false })
	if err != nil || len(removed) != 16 {
		t.Errorf("swept %d, %v; want 16", len(removed), err)
	}
}

// TestRemoveDuringMakeDurable: a removed checkpoint is unknown, whatever was
// under way.
func TestRemoveDuringMakeDurable(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	for range 20 {
		id := publish(t, s, manifest(base))
		var wg sync.WaitGroup
		wg.Go(func() { ok(t, s.MakeDurable(t.Context(), id), protocol.CodeUnknownCheckpoint) })
		wg.Go(func() { ok(t, s.Remove(id)) })
		wg.Wait()
		_, err := s.Get(id)
		code(t, err, protocol.CodeUnknownCheckpoint)
	}
}

// TestPublishOrRemoveBase: a published checkpoint has its base.
func TestPublishOrRemoveBase(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	for range 30 {
		base := addBase(t, s, checkpoint.Origin{})
		id := protocol.NewCheckpointID()
		p, err := s.Begin(id)
		check(t, err)
		check(t, os.WriteFile(p.StatePath(), nil, 0o600))
		var published, removed error
		var wg sync.WaitGroup
		wg.Go(func() { published = p.Publish(t.Context(), manifest(base)) })
		wg.Go(func() { removed = s.RemoveBase(base) })
		wg.Wait()
		if (published == nil) == (removed == nil) {
			t.Fatalf("publish: %v, remove: %v; want one of them to fail", published, removed)
		}
		if published == nil {
			check(t, s.Check(t.Context(), id))
		}
	}
}
