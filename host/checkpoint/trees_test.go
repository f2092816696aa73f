package checkpoint_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// TestTrees: what only one tree needs is its own, templates are nobody's.
func TestTrees(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	template := addBase(t, s, checkpoint.Origin{Template: "k"})
	addBase(t, s, checkpoint.Origin{Template: "other"})
	a, b := manifest(template), manifest(template)
	a.Sandbox, b.Sandbox = "sb-aaaaaaaaaaaaaaaa", "sb-bbbbbbbbbbbbbbbb"
	first := publish(t, s, a)
	publish(t, s, a)
	publish(t, s, b)
	own := addBase(t, s, checkpoint.Origin{Base: template, Checkpoint: first})
	a.Base = own
	publish(t, s, a)
	common := addBase(t, s, checkpoint.Origin{Base: template, Checkpoint: first})
	a.Base, b.Base = common, common
	publish(t, s, a)
	publish(t, s, b)

	// Blocks, as the file system has them: 3 pages of runs, one of each small
	// file; 8 pages of a base, one of its manifest, and one of a template's state.
	const files, base = (3 + 1 + 1) * page, (8 + 1) * page
	want := checkpoint.TreesUse{Trees: []checkpoint.TreeUse{
		{Sandbox: a.Sandbox, Checkpoints: 4, Own: 4*files + base, Shared: base + page + base},
		{Sandbox: b.Sandbox, Checkpoints: 2, Own: 2 * files, Shared: base + page + base},
	}, Shared: base + page + base, Unused: base + page}
	got, err := s.Trees()
	check(t, err)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got, err := open(t, memoryDir(t), checkpoint.Options{}).Trees(); err != nil || len(got.Trees) != 0 {
		t.Errorf("of an empty store: %+v, %v", got, err)
	}
}

func TestCascade(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	first := publish(t, s, manifest(addBase(t, s, checkpoint.Origin{})))
	under := addBase(t, s, checkpoint.Origin{Checkpoint: first})
	second, third := publish(t, s, manifest(under)), publish(t, s, manifest(under))
	last := publish(t, s, manifest(addBase(t, s, checkpoint.Origin{Base: under, Checkpoint: second})))
	beside := publish(t, s, manifest(addBase(t, s, checkpoint.Origin{})))
	code(t, s.Remove(first), protocol.CodeCheckpointInUse)

	release, err := s.HoldBase(under)
	check(t, err)
	if _, err := s.Cascade(first); protocol.CodeOf(err) != protocol.CodeCheckpointInUse {
		t.Errorf("under a machine: %v", err)
	}
	release()
	release, err = s.Hold(third)
	check(t, err)
	if _, err := s.Cascade(first); protocol.CodeOf(err) != protocol.CodeCheckpointInUse {
		t.Errorf("with one that is in use: %v", err)
	}
	release()
	got, err := s.Cascade(first)
	check(t, err)
	if len(got) != 4 || got[3] != first {
		t.Fatalf("got %v", got)
	}
	for i, id := range got { // last before second, all before first
		if id == second && got[0] != last && got[i-1] != last {
			t.Errorf("%v: %s comes too early", got, id)
		}
		check(t, s.Remove(id))
	}
	list, _, err := s.List()
	check(t, err)
	if len(list) != 1 || list[0].ID != beside {
		t.Errorf("left: %+v", list)
	}
	_, err = s.Cascade(first)
	code(t, err, protocol.CodeUnknownCheckpoint)
}
