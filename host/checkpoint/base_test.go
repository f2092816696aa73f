package checkpoint_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestImportBase(t *testing.T) {
	t.Parallel()
	cache := open(t, t.TempDir(), checkpoint.Options{BootID: "1"})
	run := open(t, t.TempDir(), checkpoint.Options{BootID: "1"})
	base := addBase(t, cache, checkpoint.Origin{Template: "key"})
	check(t, cache.MakeBaseDurable(t.Context(), base))
	check(t, run.ImportBase(t.Context(), cache, base))
	check(t, run.ImportBase(t.Context(), cache, base))

	id := publish(t, run, manifest(base))
	check(t, cache.RemoveBase(base)) // the cache may drop it
	check(t, run.Check(t.Context(), id))
	got, err := run.Base(base)
	check(t, err)
	if got.From.Template != "key" || string(got.Meta) != `{"freeze":1}` || got.State == nil {
		t.Errorf("got %+v", got)
	}
	check(t, run.MakeDurable(t.Context(), id))
	check(t, run.Verify(t.Context(), id))

	files, err := run.BaseFiles(base)
	check(t, err)
	content, err := os.ReadFile(files.RAM)
	check(t, err)
	if !bytes.Equal(content, ram()) {
		t.Error("content differs")
	}
	code(t, run.ImportBase(t.Context(), cache, protocol.NewBaseID()), protocol.CodeCheckpointLost)
}

// TestImportBaseOfEarlierBoot: an import must not make a base trusted.
func TestImportBaseOfEarlierBoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := addBase(t, open(t, dir, checkpoint.Options{BootID: "1"}), checkpoint.Origin{})
	run := open(t, t.TempDir(), checkpoint.Options{BootID: "2"})
	code(t, run.ImportBase(t.Context(), open(t, dir, checkpoint.Options{BootID: "2"}), base), protocol.CodeCheckpointLost)
}

func TestImport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := open(t, dir, checkpoint.Options{BootID: "1"})
	base := addBase(t, run, checkpoint.Origin{})
	check(t, run.MakeBaseDurable(t.Context(), base))
	good, torn := publish(t, run, manifest(base)), publish(t, run, manifest(base))
	check(t, run.MakeDurable(t.Context(), good))

	kept := open(t, t.TempDir(), checkpoint.Options{BootID: "2"})
	check(t, kept.Import(t.Context(), run, good))
	check(t, kept.Import(t.Context(), run, good))
	m, err := kept.Get(good)
	check(t, err)
	if m.Durable || m.Boot != "2" || m.Digest != "" {
		t.Errorf("imported as durable %t, boot %q, digest %q", m.Durable, m.Boot, m.Digest)
	}
	check(t, kept.MakeDurable(t.Context(), good))
	check(t, kept.Verify(t.Context(), good))

	// An import must not make what a crash damaged trusted.
	files, err := run.Files(torn)
	check(t, err)
	overwrite(t, files.Pages, make([]byte, 3*page))
	code(t, kept.Import(t.Context(), open(t, dir, checkpoint.Options{BootID: "2"}), torn), protocol.CodeCheckpointLost)
	code(t, kept.Import(t.Context(), run, protocol.NewCheckpointID()), protocol.CodeUnknownCheckpoint)
}

// TestImportBaseOverFileSystems copies where no link can be made, with holes.
func TestImportBaseOverFileSystems(t *testing.T) {
	t.Parallel()
	shm, err := os.MkdirTemp("/dev/shm", "ratoon-test-")
	if err != nil {
		t.Skipf("needs a second file system: mount a tmpfs at /dev/shm (%v)", err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	here := t.TempDir()
	var a, b unix.Stat_t
	check(t, unix.Stat(shm, &a))
	check(t, unix.Stat(here, &b))
	if a.Dev == b.Dev {
		t.Skip("/dev/shm is not another file system than the temporary directory; set TMPDIR")
	}
	cache, run := open(t, shm, checkpoint.Options{}), open(t, here, checkpoint.Options{})
	id := protocol.NewBaseID()
	p, err := cache.BeginBase(id)
	check(t, err)
	content := make([]byte, 4<<20+5)
	copy(content[1<<20:], "data")
	check(t, os.WriteFile(p.RAMPath(), content, 0o600))
	check(t, p.Publish(t.Context(), checkpoint.BaseManifest{}))
	check(t, run.ImportBase(t.Context(), cache, id))
	files, err := run.BaseFiles(id)
	check(t, err)
	got, err := os.ReadFile(files.RAM)
	check(t, err)
	if !bytes.Equal(got, content) {
		t.Error("content differs")
	}
	var st unix.Stat_t
	check(t, unix.Stat(files.RAM, &st))
	if st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes allocated for one piece of data", st.Blocks*512)
	}
}

func TestBaseDiscardAndDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, checkpoint.Options{})
	p, err := s.BeginBase(protocol.NewBaseID())
	check(t, err)
	code(t, p.Publish(t.Context(), checkpoint.BaseManifest{}), protocol.CodeCaptureFailed) // no RAM
	p.Discard()
	p, err = s.BeginBase(protocol.NewBaseID())
	check(t, err)
	check(t, os.WriteFile(p.RAMPath(), nil, 0o600))
	code(t, p.Publish(t.Context(), checkpoint.BaseManifest{}), protocol.CodeInvalidArgument) // empty RAM
	p, err = s.BeginBase(protocol.NewBaseID())
	check(t, err)
	check(t, os.WriteFile(p.RAMPath(), ram(), 0o600))
	code(t, p.Publish(t.Context(), checkpoint.BaseManifest{From: checkpoint.Origin{Checkpoint: protocol.NewCheckpointID()}}), protocol.CodeUnknownCheckpoint)

	base := addBase(t, s, checkpoint.Origin{})
	check(t, os.Truncate(filepath.Join(dir, "bases", string(base), "ram"), page))
	_, bad, err := s.Bases()
	check(t, err)
	if len(bad) != 1 || bad[0].ID != string(base) {
		t.Errorf("damaged: %v", bad)
	}
	removed, err := s.SweepBases(nil)
	if err != nil || len(removed) != 1 {
		t.Errorf("SweepBases: %v, %v", removed, err)
	}
	use, err := s.Usage()
	check(t, err)
	if use != (checkpoint.Usage{}) {
		t.Errorf("left: %+v", use)
	}
}
