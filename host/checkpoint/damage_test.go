package checkpoint_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// overwrite replaces a read-only file.
func overwrite(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	check(t, os.WriteFile(path, data, 0o600))
}

func wantUnusable(t *testing.T, what string, at int, err error) {
	t.Helper()
	switch protocol.CodeOf(err) {
	case protocol.CodeCheckpointLost:
	case protocol.CodeCheckpointRefused: // the damage made the format's digit larger
		if !strings.Contains(err.Error(), "format") {
			t.Errorf("%s at byte %d: %v", what, at, err)
		}
	default:
		t.Fatalf("%s at byte %d: %v, want checkpoint_lost", what, at, err)
	}
}

// TestDamage flips a bit of every byte and cuts at every length of each small
// file, and does so at some hundred places of the large ones.
func TestDamage(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	s := open(t, dir, checkpoint.Options{})
	base := protocol.NewBaseID()
	check(t, makeTemplate(t.Context(), s, base))
	id := publish(t, s, manifest(base))
	check(t, s.MakeDurable(t.Context(), id))
	verify := func() error {
		return open(t, dir, checkpoint.Options{ReadOnly: true}).Verify(context.Background(), id)
	}
	for _, file := range []string{"checkpoints/" + string(id) + "/state", "checkpoints/" + string(id) + "/manifest",
		"checkpoints/" + string(id) + "/pages", "bases/" + string(base) + "/manifest", "bases/" + string(base) + "/state", "bases/" + string(base) + "/ram"} {
		path := filepath.Join(dir, file)
		good, err := os.ReadFile(path)
		check(t, err)
		step := 1
		if len(good) > 2000 {
			step = len(good)/97 | 1
		}
		for i := 0; i < len(good); i += step {
			bad := slices.Clone(good)
			bad[i] ^= 1 << (i % 8)
			overwrite(t, path, bad)
			err := verify()
			wantUnusable(t, file+" flipped", i, err)
			if !strings.Contains(err.Error(), filepath.Base(file)) {
				t.Fatalf("%s flipped at %d: does not name the file: %v", file, i, err)
			}
			overwrite(t, path, good[:i])
			wantUnusable(t, file+" cut", i, verify())
		}
		overwrite(t, path, append(slices.Clone(good), 0))
		wantUnusable(t, file+" longer", len(good), verify())
		check(t, os.Remove(path))
		wantUnusable(t, file+" removed", 0, verify())
		check(t, os.Mkdir(path, 0o700))
		wantUnusable(t, file+" a directory", 0, verify())
		check(t, os.Remove(path))
		overwrite(t, path, good)
		check(t, verify())
	}
}

// TestCheckFindsRuns damages pages of a checkpoint that is not durable.
func TestCheckFindsRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	id := publish(t, s, manifest(base))
	files, err := s.Files(id)
	check(t, err)
	good, err := os.ReadFile(files.Pages)
	check(t, err)
	for at, run := range map[int]string{0: "run 0", page - 1: "run 0", page: "run 2", 3*page - 1: "run 2"} {
		bad := slices.Clone(good)
		bad[at] ^= 1
		overwrite(t, files.Pages, bad)
		err := s.Check(t.Context(), id)
		wantUnusable(t, "pages", at, err)
		if !strings.Contains(err.Error(), run) {
			t.Errorf("byte %d: %v, want it to name %s", at, err, run)
		}
		// Damage must not be blessed with a strong digest.
		wantUnusable(t, "MakeDurable", at, s.MakeDurable(t.Context(), id))
	}
	overwrite(t, files.Pages, good)
	check(t, s.Check(t.Context(), id))
}

func TestListShowsDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, checkpoint.Options{})
	base := addBase(t, s, checkpoint.Origin{})
	good, noPages, torn, empty := publish(t, s, manifest(base)), publish(t, s, manifest(base)), publish(t, s, manifest(base)), publish(t, s, manifest(base))
	at := func(id protocol.CheckpointID, file string) string {
		return filepath.Join(dir, "checkpoints", string(id), file)
	}
	check(t, os.Remove(at(noPages, "pages")))
	check(t, os.Truncate(at(torn, "manifest"), 100))
	check(t, os.RemoveAll(at(empty, "")))
	check(t, os.Mkdir(at(empty, ""), 0o700))
	check(t, os.Mkdir(at("lost+found", ""), 0o700))
	// A manifest of another checkpoint is damage too.
	moved := protocol.NewCheckpointID()
	check(t, os.CopyFS(at(moved, ""), os.DirFS(at(good, ""))))

	list, bad, err := s.List()
	check(t, err)
	if len(list) != 1 || list[0].ID != good {
		t.Errorf("listed %v, want %s alone", list, good)
	}
	want := map[string]string{string(noPages): "file pages", string(torn): "file manifest", string(empty): "file manifest", string(moved): "file manifest"}
	for _, d := range bad {
		if !strings.Contains(d.Err.Error(), want[d.ID]) || want[d.ID] == "" {
			t.Errorf("%s: %v, want it to name %q", d.ID, d.Err, want[d.ID])
		}
		delete(want, d.ID)
		_, err := s.Get(protocol.CheckpointID(d.ID))
		code(t, err, protocol.CodeCheckpointLost)
	}
	if len(want) > 0 {
		t.Errorf("not listed as damaged: %v", want)
	}
	for _, id := range []protocol.CheckpointID{noPages, torn, empty, moved} {
		check(t, s.Remove(id))
	}
}

func TestRecover(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, dir, checkpoint.Options{BootID: "1"})
	base, weak := addBase(t, first, checkpoint.Origin{}), addBase(t, first, checkpoint.Origin{})
	check(t, first.MakeBaseDurable(t.Context(), base))
	sound, torn, durable, overWeak := publish(t, first, manifest(base)), publish(t, first, manifest(base)), publish(t, first, manifest(base)), publish(t, first, manifest(weak))
	check(t, first.MakeDurable(t.Context(), durable))
	files, err := first.Files(torn)
	check(t, err)
	overwrite(t, files.Pages, make([]byte, 3*page)) // what a crash leaves of an unwritten file

	if bad, err := first.Recover(t.Context()); err != nil || len(bad) > 0 {
		t.Errorf("in the same boot: %v, %v", bad, err)
	}
	second := open(t, dir, checkpoint.Options{BootID: "2"})
	bad, err := second.Recover(t.Context())
	check(t, err)
	lost := map[string]bool{}
	for _, d := range bad {
		lost[d.ID] = true
		code(t, d.Err, protocol.CodeCheckpointLost)
		_, err := second.Get(protocol.CheckpointID(d.ID))
		code(t, err, protocol.CodeCheckpointLost)
	}
	if len(lost) != 2 || !lost[string(torn)] || !lost[string(overWeak)] {
		t.Errorf("lost %v, want %s and %s", lost, torn, overWeak)
	}
	check(t, second.Check(t.Context(), sound))
	check(t, second.Verify(t.Context(), durable))
	code(t, second.CheckBase(weak), protocol.CodeCheckpointLost)
	code(t, second.MakeBaseDurable(t.Context(), weak), protocol.CodeCheckpointLost)

	check(t, second.Remove(torn))
	_, err = second.Get(torn)
	code(t, err, protocol.CodeUnknownCheckpoint)
	if bad, err := second.Recover(t.Context()); err != nil || len(bad) > 0 {
		t.Errorf("again: %v, %v", bad, err)
	}
}

// TestNewerFormatIsKept: after a downgrade nothing of a newer release may be
// removed by the way.
func TestNewerFormatIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, checkpoint.Options{BootID: "1"})
	base := addBase(t, s, checkpoint.Origin{})
	id := publish(t, s, manifest(base))
	path := filepath.Join(dir, "checkpoints", string(id), "manifest")
	data, err := os.ReadFile(path)
	check(t, err)
	overwrite(t, path, []byte(strings.Replace(string(data), `"format":1`, `"format":3`, 1)))

	s = open(t, dir, checkpoint.Options{BootID: "2"})
	_, err = s.Get(id)
	code(t, err, protocol.CodeCheckpointRefused)
	if bad, err := s.Recover(t.Context()); err != nil || len(bad) > 0 {
		t.Errorf("Recover: %v, %v", bad, err)
	}
	if removed, err := s.SweepBases(nil); err != nil || len(removed) > 0 {
		t.Errorf("SweepBases: %v, %v", removed, err)
	}
	code(t, s.RemoveBase(base), protocol.CodeCheckpointInUse)
	check(t, s.Remove(id))
	check(t, s.RemoveBase(base))
}
