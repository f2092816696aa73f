package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// examined is what Examine reports.
func examined(t rapid.TB, s *checkpoint.Store, ids ...protocol.CheckpointID) (out []checkpoint.Report) {
	t.Helper()
	err := s.Examine(context.Background(), ids, nil, func(r checkpoint.Report) error {
		out = append(out, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// bigBase adds a base of some blocks.
func bigBase(t testing.TB, s *checkpoint.Store) protocol.BaseID {
	t.Helper()
	id := protocol.NewBaseID()
	p, err := s.BeginBase(id)
	check(t, err)
	check(t, errors.Join(os.WriteFile(p.RAMPath(), bytes.Repeat([]byte("ratoon! "), 5<<19/8), 0o600), os.WriteFile(p.StatePath(), []byte("template"), 0o600)))
	check(t, p.Publish(t.Context(), checkpoint.BaseManifest{ID: id, From: checkpoint.Origin{Template: "k"}}))
	return id
}

// TestFlippedBitIsFound: whatever bit of whatever file flips, the file is named
// and the place is in the piece that is named.
func TestFlippedBitIsFound(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	s := open(t, dir, checkpoint.Options{})
	base := bigBase(t, s)
	id := publish(t, s, manifest(base))
	check(t, s.MakeDurable(t.Context(), id))
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
	check(t, err)
	if len(files) != 6 {
		t.Fatalf("files: %v", files)
	}
	if got := examined(t, s); len(got) != 1 || got[0].Damage != nil || !got[0].Durable || got[0].Bytes != 12+3*page+5<<19 {
		t.Fatalf("before: %+v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.SampledFrom(files).Draw(t, "file")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, len(data)-1).Draw(t, "byte")
		bad := bytes.Clone(data)
		bad[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		replace := func(b []byte) {
			if err := errors.Join(os.Remove(path), os.WriteFile(path, b, 0o400)); err != nil {
				t.Fatal(err)
			}
		}
		replace(bad)
		// Each time anew, as a base is not read again for nothing.
		got := examined(t, s)
		replace(data)
		if len(got) != 1 || got[0].ID != id || len(got[0].Damage) != 1 {
			t.Fatalf("%+v, want one place", got)
		}
		d := got[0].Damage[0]
		if d.File != filepath.Base(path) || (d.Base == base) != strings.Contains(path, "bases") ||
			d.Code != protocol.CodeCheckpointLost && d.Code != protocol.CodeCheckpointRefused { // the format may look newer
			t.Fatalf("%+v, want %s", d, path)
		}
		length := int64(len(data))
		switch d.File {
		case "ram":
			length = 1 << 20
		case "pages":
			length = map[int64]int64{0: page, page: 2 * page}[d.Offset]
		}
		if int64(at) < d.Offset || int64(at) >= d.Offset+length {
			t.Fatalf("byte %d was changed, byte %d of %d is named", at, d.Offset, length)
		}
	})
}

// TestExamine: damage of one checkpoint hides no other's, a base is read once,
// and what has no checksums is told.
func TestExamine(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	s := open(t, dir, checkpoint.Options{})
	base, weak := bigBase(t, s), addBase(t, s, checkpoint.Origin{})
	sound, short, gone, lost, soft := publish(t, s, manifest(base)), publish(t, s, manifest(base)), publish(t, s, manifest(base)), publish(t, s, manifest(base)), publish(t, s, manifest(weak))
	for _, id := range []protocol.CheckpointID{sound, short, gone} {
		check(t, s.MakeDurable(t.Context(), id))
	}
	check(t, os.Truncate(filepath.Join(dir, "checkpoints", string(short), "pages"), page+5))
	check(t, os.Remove(filepath.Join(dir, "checkpoints", string(gone), "state")))
	check(t, s.Condemn(lost, "power cut"))
	got := map[protocol.CheckpointID]checkpoint.Report{}
	var last checkpoint.Progress
	err := s.Examine(t.Context(), nil, func(p checkpoint.Progress) {
		if p.Done < last.Done || p.Done > p.Total {
			t.Errorf("progress %+v after %+v", p, last)
		}
		last = p
	}, func(r checkpoint.Report) error {
		for i := range r.Damage {
			r.Damage[i].Reason = ""
		}
		got[r.ID] = r
		return nil
	})
	check(t, err)
	want := map[protocol.CheckpointID]checkpoint.Report{
		sound: {ID: sound, Bytes: 12 + 3*page + 5<<19, Durable: true},
		soft:  {ID: soft, Bytes: 12 + 3*page},
		short: {ID: short, Damage: []checkpoint.Damage{{File: "pages", Offset: page + 5, Code: protocol.CodeCheckpointLost}}},
		gone:  {ID: gone, Damage: []checkpoint.Damage{{File: "state", Code: protocol.CodeCheckpointLost}}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if last.Done != last.Total || last.Total == 0 {
		t.Errorf("progress ended at %+v", last)
	}
	if r := examined(t, s, lost); len(r) != 1 || len(r[0].Damage) != 1 || !strings.Contains(r[0].Damage[0].Reason, "power cut") {
		t.Errorf("a lost one that is named: %+v", r)
	}
	code(t, s.Examine(t.Context(), []protocol.CheckpointID{protocol.NewCheckpointID()}, nil, nil), protocol.CodeUnknownCheckpoint)
	code(t, s.Examine(t.Context(), []protocol.CheckpointID{"../x"}, nil, nil), protocol.CodeInvalidArgument)
}
