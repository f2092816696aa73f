package checkpoint_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

var update = flag.Bool("update", false, "write testdata anew")

// Of testdata: a flat checkpoint and one in frames, over one base.
const (
	goldenFlat   protocol.CheckpointID = "cp-ffffffffffffffff"
	goldenFramed protocol.CheckpointID = "cp-rrrrrrrrrrrrrrrr"
	goldenBase   protocol.BaseID       = "ba-gggggggggggggggg"
)

// TestGolden reads what an earlier release wrote: a store, and an exported
// file.
func TestGolden(t *testing.T) {
	t.Parallel()
	if *update {
		writeGolden(t)
	}
	dir := memoryDir(t)
	check(t, os.CopyFS(dir, os.DirFS("testdata/store")))
	s := open(t, dir, checkpoint.Options{BootID: "another"})
	for id, fill := range map[protocol.CheckpointID]byte{goldenFlat: 'a', goldenFramed: 'b'} {
		check(t, s.Verify(t.Context(), id))
		pages, _ := delta(fill)
		want := ram()
		clear(want[:page])
		copy(want[page:], pages[page:])
		copy(want[4*page:], pages[:page])
		if !bytes.Equal(want, guestMemory(t, s, id)) {
			t.Errorf("%s has another memory", id)
		}
	}
	file, err := os.ReadFile("testdata/exported")
	check(t, err)
	for i, to := range []*checkpoint.Store{open(t, memoryDir(t), checkpoint.Options{}), s} {
		m, fresh, err := to.ImportFile(t.Context(), bytes.NewReader(file))
		if err != nil || fresh != (i == 0) || m.ID != goldenFramed {
			t.Errorf("%s, fresh %t, %v", m.ID, fresh, err)
		}
	}
}

func writeGolden(t *testing.T) {
	t.Helper()
	dir := memoryDir(t)
	s := open(t, dir, checkpoint.Options{BootID: "boot"})
	b, err := s.BeginBase(goldenBase)
	check(t, err)
	check(t, errors.Join(os.WriteFile(b.RAMPath(), ram(), 0o600), b.Publish(t.Context(), checkpoint.BaseManifest{ID: goldenBase, Created: now})))
	m := manifest(goldenBase)
	m.Created = now
	for id, fill := range map[protocol.CheckpointID]byte{goldenFlat: 'a', goldenFramed: 'b'} {
		p, err := s.Begin(id)
		check(t, err)
		pages, _ := delta(fill)
		m.Files.Pages.Runs = runsOf(pages)
		check(t, errors.Join(os.WriteFile(p.StatePath(), []byte("device state"), 0o600), os.WriteFile(p.PagesPath(), pages, 0o600), p.Publish(t.Context(), m)))
		check(t, s.MakeDurable(t.Context(), id))
	}
	check(t, s.Compact(t.Context(), goldenFramed))
	check(t, errors.Join(os.RemoveAll("testdata/store"), os.MkdirAll("testdata", 0o755), os.CopyFS("testdata/store", os.DirFS(dir))))
	for _, empty := range []string{"tmp", "lost"} { // git keeps no empty directories
		check(t, os.Remove(filepath.Join("testdata/store", empty)))
	}
	check(t, os.WriteFile("testdata/exported", export(t, s, goldenFramed), 0o644))
}
