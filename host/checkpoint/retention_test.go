package checkpoint_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// aged is a manifest of a class that was made so long before now.
func aged(id string, class checkpoint.Class, age time.Duration) checkpoint.Manifest {
	return checkpoint.Manifest{ID: protocol.CheckpointID(id), Class: class, Created: now.Add(-age)}
}

var now = time.Date(2026, 12, 7, 12, 0, 0, 0, time.UTC)

func TestExpired(t *testing.T) {
	t.Parallel()
	list := []checkpoint.Manifest{ // in no order
		aged("auto 2h", checkpoint.ClassAuto, 2*time.Hour),
		aged("named 9h", checkpoint.ClassNamed, 9*time.Hour),
		aged("auto 4h", checkpoint.ClassAuto, 4*time.Hour),
		aged("auto 1h", checkpoint.ClassAuto, time.Hour),
		aged("internal 9h", checkpoint.ClassInternal, 9*time.Hour),
		aged("auto 3h", checkpoint.ClassAuto, 3*time.Hour),
		aged("pinned 9h", checkpoint.ClassPinned, 9*time.Hour),
	}
	for _, c := range []struct {
		policy checkpoint.Policy
		want   []protocol.CheckpointID
	}{
		{checkpoint.Policy{}, nil},
		{checkpoint.Policy{KeepLast: 4}, nil},
		{checkpoint.Policy{KeepLast: 2}, []protocol.CheckpointID{"auto 4h", "auto 3h"}},
		{checkpoint.Policy{KeepLast: -1}, []protocol.CheckpointID{"auto 4h", "auto 3h", "auto 2h", "auto 1h"}},
		{checkpoint.Policy{KeepLast: -1, KeepFor: 150 * time.Minute}, []protocol.CheckpointID{"auto 4h", "auto 3h"}},
		{checkpoint.Policy{KeepLast: 3, KeepFor: time.Minute}, []protocol.CheckpointID{"auto 4h"}},
		{checkpoint.Policy{KeepLast: -1, KeepFor: 4 * time.Hour}, []protocol.CheckpointID{"auto 4h"}},
	} {
		if d := cmp.Diff(c.want, checkpoint.Expired(list, c.policy, now)); d != "" {
			t.Errorf("%+v (-want +got):\n%s", c.policy, d)
		}
	}
	for i := range list {
		list[i].Expires = now
	}
	want := []protocol.CheckpointID{"named 9h", "auto 4h", "auto 3h", "auto 2h", "auto 1h"}
	if d := cmp.Diff(want, checkpoint.Expired(list, checkpoint.Policy{}, now)); d != "" {
		t.Errorf("all expire now (-want +got):\n%s", d)
	}
	if got := checkpoint.Expired(list, checkpoint.Policy{}, now.Add(-1)); got != nil {
		t.Errorf("before their time: %v", got)
	}
	var many []checkpoint.Manifest
	for i := range 10 {
		many = append(many, aged(string(rune('a'+i)), checkpoint.ClassAuto, time.Duration(i)*time.Hour))
	}
	if d := cmp.Diff([]protocol.CheckpointID{"j", "i"}, checkpoint.Expired(many, checkpoint.Policy{}, now)); d != "" {
		t.Errorf("the default (-want +got):\n%s", d)
	}
}

// TestExpiredKeeps holds the rules for any list and policy.
func TestExpiredKeeps(t *testing.T) {
	t.Parallel()
	classes := []checkpoint.Class{checkpoint.ClassNamed, checkpoint.ClassPinned, checkpoint.ClassAuto, checkpoint.ClassInternal}
	rapid.Check(t, func(t *rapid.T) {
		var list []checkpoint.Manifest
		for i := range rapid.IntRange(0, 30).Draw(t, "n") {
			m := aged(string(rune('A'+i)), rapid.SampledFrom(classes).Draw(t, "class"), time.Duration(rapid.IntRange(-10, 100).Draw(t, "age"))*time.Minute)
			if rapid.Bool().Draw(t, "expires") {
				m.Expires = now.Add(time.Duration(rapid.IntRange(-10, 10).Draw(t, "in")) * time.Minute)
			}
			list = append(list, m)
		}
		p := checkpoint.Policy{KeepLast: rapid.IntRange(-1, 12).Draw(t, "last"), KeepFor: time.Duration(rapid.IntRange(0, 60).Draw(t, "for")) * time.Minute}
		gone := checkpoint.Expired(list, p, now)
		left := slices.DeleteFunc(slices.Clone(list), func(m checkpoint.Manifest) bool { return slices.Contains(gone, m.ID) })
		if len(left)+len(gone) != len(list) {
			t.Fatalf("%d gone, %d left of %d", len(gone), len(left), len(list))
		}
		for _, m := range list {
			removed := slices.Contains(gone, m.ID)
			over := !m.Expires.IsZero() && !m.Expires.After(now)
			switch {
			case removed && (m.Class == checkpoint.ClassPinned || m.Class == checkpoint.ClassInternal):
				t.Fatalf("%s of class %s is removed", m.ID, m.Class)
			case removed && m.Class == checkpoint.ClassNamed && !over:
				t.Fatalf("%s is removed before its time", m.ID)
			case !removed && over && (m.Class == checkpoint.ClassNamed || m.Class == checkpoint.ClassAuto):
				t.Fatalf("%s is kept after its time", m.ID)
			}
		}
		// What is left stays: retention comes to rest.
		if again := checkpoint.Expired(left, p, now); len(again) > 0 && !slices.ContainsFunc(list, func(m checkpoint.Manifest) bool { return !m.Expires.IsZero() }) {
			t.Fatalf("once more: %v", again)
		}
	})
}

func TestPin(t *testing.T) {
	t.Parallel()
	s := open(t, memoryDir(t), checkpoint.Options{})
	m := manifest(addBase(t, s, checkpoint.Origin{}))
	id := publish(t, s, m)
	check(t, s.SetExpiry(id, now))
	check(t, s.Pin(t.Context(), id))
	check(t, s.Pin(t.Context(), id))
	got, err := s.Get(id)
	check(t, err)
	if got.Class != checkpoint.ClassPinned || !got.Durable || !got.Expires.Equal(now) {
		t.Errorf("pinned: %+v", got)
	}
	if e := code(t, s.Remove(id), protocol.CodeCheckpointInUse); e.Details["pinned"] != true {
		t.Errorf("%+v", e)
	}
	if removed, err := s.Sweep(func(protocol.CheckpointID) bool { return false }); err != nil || removed != nil {
		t.Errorf("swept %v, %v", removed, err)
	}
	check(t, s.Verify(t.Context(), id))
	check(t, s.Unpin(id))
	check(t, s.SetExpiry(id, time.Time{}))
	got, err = s.Get(id)
	check(t, err)
	if got.Class != checkpoint.ClassNamed || !got.Expires.IsZero() {
		t.Errorf("unpinned: %+v", got)
	}
	check(t, s.SetClass(id, checkpoint.ClassAuto))
	check(t, s.Unpin(id))
	if got, err = s.Get(id); err != nil || got.Class != checkpoint.ClassAuto {
		t.Errorf("unpin of one that is not pinned: %s, %v", got.Class, err)
	}
	check(t, s.Remove(id))
	code(t, s.Pin(t.Context(), id), protocol.CodeUnknownCheckpoint)
	m.Class = checkpoint.ClassInternal
	code(t, s.Pin(t.Context(), publish(t, s, m)), protocol.CodeInvalidArgument)
}

// TestPinFails: a pin that fails leaves the checkpoint as it was. Not parallel:
// labels are armed in the whole process.
func TestPinFails(t *testing.T) {
	s := open(t, memoryDir(t), checkpoint.Options{})
	id := publish(t, s, manifest(addBase(t, s, checkpoint.Origin{})))
	check(t, s.MakeDurable(t.Context(), id))
	for _, label := range []string{"checkpoint.rewrite.write", "checkpoint.rewrite.fsync", "checkpoint.rewrite.rename"} {
		clear := fault.Set(label, 1, fault.Error(syscall.ENOSPC))
		code(t, s.Pin(t.Context(), id), protocol.CodeDiskFull)
		clear()
		if m, err := s.Get(id); err != nil || m.Class != checkpoint.ClassNamed {
			t.Errorf("%s: class %s, %v", label, m.Class, err)
		}
		check(t, s.Verify(t.Context(), id))
	}
}

func TestCold(t *testing.T) {
	t.Parallel()
	sized := func(id string, class checkpoint.Class, age time.Duration, size int64, base protocol.BaseID) checkpoint.Manifest {
		m := aged(id, class, age)
		m.Base, m.Files.Pages.Size = base, size
		return m
	}
	framed := sized("framed", checkpoint.ClassNamed, 2*time.Hour, 1000, "a")
	framed.Files.Frames = &checkpoint.Frames{}
	list := []checkpoint.Manifest{
		sized("5h", checkpoint.ClassNamed, 5*time.Hour, 10, "a"),
		sized("4h internal", checkpoint.ClassInternal, 4*time.Hour, 10, "b"),
		sized("3h pinned", checkpoint.ClassPinned, 3*time.Hour, 10, "b"),
		framed,
		sized("1h", checkpoint.ClassAuto, time.Hour, 10, "a"),
		sized("now", checkpoint.ClassInternal, 0, 10, "a"),
	}
	base := func(id protocol.BaseID) int64 { return map[protocol.BaseID]int64{"b": 100}[id] }
	for _, c := range []struct {
		hot  int64
		want []protocol.CheckpointID
	}{
		{1000, nil},
		{150, nil},
		{149, []protocol.CheckpointID{"5h"}},
		{139, []protocol.CheckpointID{"5h", "4h internal"}},
		{129, []protocol.CheckpointID{"5h", "4h internal", "3h pinned"}},
		{20, []protocol.CheckpointID{"5h", "4h internal", "3h pinned"}},
		{19, []protocol.CheckpointID{"5h", "4h internal", "3h pinned", "1h"}},
		{0, []protocol.CheckpointID{"5h", "4h internal", "3h pinned", "1h"}},
	} {
		if d := cmp.Diff(c.want, checkpoint.Cold(list, c.hot, now, base)); d != "" {
			t.Errorf("%d bytes (-want +got):\n%s", c.hot, d)
		}
	}
}
