package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// childEnv makes the test binary run the scenario in the directory it names.
const childEnv = "RATOON_TEST_CHECKPOINT_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := scenario(context.Background(), dir, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	toldPublished = "published"
	toldDurable   = "durable"
	toldFramed    = "framed" // durable, in the store of frames
	toldGoing     = "going"
	toldRemoved   = "removed"
	toldLost      = "lost"
)

// scenario passes every label. What a caller would know after each step is
// written to told, as "word id" lines.
func scenario(ctx context.Context, dir string, told io.Writer) error {
	cache, err := checkpoint.Open(filepath.Join(dir, "cache"), checkpoint.Options{})
	if err != nil {
		return err
	}
	s, err := checkpoint.Open(filepath.Join(dir, "run"), checkpoint.Options{})
	if err != nil {
		return err
	}
	base := protocol.NewBaseID()
	if err := makeTemplate(ctx, cache, base); err != nil {
		return err
	}
	if err := s.ImportBase(ctx, cache, base); err != nil {
		return err
	}
	ids := []protocol.CheckpointID{protocol.NewCheckpointID(), protocol.NewCheckpointID(), protocol.NewCheckpointID()}
	for i, id := range ids {
		if err := makeCheckpoint(ctx, s, id, base, i > 0); err != nil {
			return err
		}
		fmt.Fprintln(told, toldPublished, id)
	}
	if err := s.MakeDurable(ctx, ids[0]); err != nil {
		return err
	}
	fmt.Fprintln(told, toldDurable, ids[0])
	if err := s.SetClass(ids[0], checkpoint.ClassAuto); err != nil {
		return err
	}
	if err := s.Remove(ids[1]); err != nil {
		return err
	}
	fmt.Fprintln(told, toldRemoved, ids[1])
	if err := s.Condemn(ids[2], "its time had come"); err != nil {
		return err
	}
	fmt.Fprintln(told, toldLost, ids[2])
	kept, err := checkpoint.Open(filepath.Join(dir, "kept"), checkpoint.Options{})
	if err != nil {
		return err
	}
	if err := kept.Import(ctx, s, ids[0]); err != nil {
		return err
	}
	sent, err := checkpoint.Open(filepath.Join(dir, "sent"), checkpoint.Options{})
	if err != nil {
		return err
	}
	var file bytes.Buffer
	if err := kept.Export(ctx, ids[0], &file); err != nil {
		return err
	}
	if _, _, err := sent.ImportFile(ctx, &file); err != nil {
		return err
	}
	if err := garbage(ctx, s, base); err != nil {
		return err
	}
	if err := frames(ctx, dir, told); err != nil {
		return err
	}
	return cache.RemoveBase(base)
}

// frames compacts two checkpoints, and removes the one that made most of what
// they share.
func frames(ctx context.Context, dir string, told io.Writer) error {
	s, err := checkpoint.Open(filepath.Join(dir, "framed"), checkpoint.Options{})
	if err != nil {
		return err
	}
	base := protocol.NewBaseID()
	if err := makeTemplate(ctx, s, base); err != nil {
		return err
	}
	m := manifest(base)
	ids := []protocol.CheckpointID{protocol.NewCheckpointID(), protocol.NewCheckpointID()}
	for i, id := range ids {
		pages, _ := delta('f')
		copy(pages, ids[0])                                                        // another content in each run
		copy(pages[page:], bytes.Repeat([]byte{byte(i), 1, 2, 3, 5, 7}, 2*page/6)) // the first one stays the same
		m.Files.Pages.Runs = runsOf(pages)
		p, err := s.Begin(id)
		if err != nil {
			return err
		}
		defer p.Discard()
		if err := errors.Join(os.WriteFile(p.StatePath(), []byte("device state"), 0o600), os.WriteFile(p.PagesPath(), pages, 0o600)); err != nil {
			return err
		}
		if err := p.Publish(ctx, m); err != nil {
			return err
		}
		if err := s.MakeDurable(ctx, id); err != nil {
			return err
		}
		fmt.Fprintln(told, toldFramed, id)
		if err := s.Compact(ctx, id); err != nil {
			return err
		}
	}
	fmt.Fprintln(told, toldGoing, ids[0])
	if err := s.Remove(ids[0]); err != nil {
		return err
	}
	fmt.Fprintln(told, toldRemoved, ids[0])
	c, err := s.Collect(ctx, checkpoint.CollectOptions{})
	if err == nil && c.Packed == 0 {
		err = fmt.Errorf("collected %+v", c)
	}
	return err
}

// garbage makes some and collects it.
func garbage(ctx context.Context, s *checkpoint.Store, base protocol.BaseID) error {
	id := protocol.NewCheckpointID()
	if err := makeCheckpoint(ctx, s, id, base, true); err != nil {
		return err
	}
	if err := s.SetClass(id, checkpoint.ClassInternal); err != nil {
		return err
	}
	if err := makeTemplate(ctx, s, protocol.NewBaseID()); err != nil {
		return err
	}
	c, err := s.Collect(ctx, checkpoint.CollectOptions{})
	if err == nil && (len(c.Checkpoints) == 0 || len(c.Bases) == 0 || c.Freed == 0) {
		return fmt.Errorf("collected %+v", c)
	}
	return err
}

// stores are the directories of the scenario's stores.
var stores = []string{"cache", "run", "kept", "sent", "framed"}

func makeTemplate(ctx context.Context, s *checkpoint.Store, id protocol.BaseID) error {
	p, err := s.BeginBase(id)
	if err != nil {
		return err
	}
	defer p.Discard()
	if err := errors.Join(os.WriteFile(p.RAMPath(), ram(), 0o600), os.WriteFile(p.StatePath(), []byte("state"), 0o600)); err != nil {
		return err
	}
	return p.Publish(ctx, checkpoint.BaseManifest{From: checkpoint.Origin{Template: "k"}})
}

func makeCheckpoint(ctx context.Context, s *checkpoint.Store, id protocol.CheckpointID, base protocol.BaseID, withPages bool) error {
	p, err := s.Begin(id)
	if err != nil {
		return err
	}
	defer p.Discard()
	m := manifest(base)
	if err := os.WriteFile(p.StatePath(), []byte("device state"), 0o600); err != nil {
		return err
	}
	if withPages {
		pages, runs := delta('k')
		m.Files.Pages.Runs = runs
		if err := os.WriteFile(p.PagesPath(), pages, 0o600); err != nil {
			return err
		}
	}
	return p.Publish(ctx, m)
}

// consistent checks everything a store holds, and what its user was told.
func consistent(t *testing.T, dir, told string) {
	t.Helper()
	for _, sub := range stores {
		s := open(t, filepath.Join(dir, sub), checkpoint.Options{})
		list, bad, err := s.List()
		check(t, err)
		if len(bad) > 0 {
			t.Errorf("%s: half a checkpoint: %v", sub, bad)
		}
		for _, m := range list {
			check(t, s.Check(t.Context(), m.ID))
			if m.Durable {
				check(t, s.Verify(t.Context(), m.ID))
			}
		}
		bases, bad, err := s.Bases()
		check(t, err)
		if len(bad) > 0 {
			t.Errorf("%s: half a base: %v", sub, bad)
		}
		for _, b := range bases {
			check(t, s.CheckBase(b.ID))
		}
	}
	s := open(t, filepath.Join(dir, "run"), checkpoint.Options{})
	last := map[protocol.CheckpointID]string{}
	for line := range strings.Lines(told) {
		word, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		last[protocol.CheckpointID(id)] = word
	}
	for id, word := range last {
		m, err := s.Get(id)
		switch word {
		case toldDurable:
			if err != nil || !m.Durable {
				t.Errorf("told durable %s: %v, durable %t", id, err, m.Durable)
			}
		case toldFramed:
			check(t, open(t, filepath.Join(dir, "framed"), checkpoint.Options{}).Verify(t.Context(), id))
		case toldRemoved:
			code(t, err, protocol.CodeUnknownCheckpoint)
		case toldLost:
			code(t, err, protocol.CodeCheckpointLost)
		}
	}
}

// passes counts how often one scenario passes each label.
func passes(t *testing.T) map[string]int {
	t.Helper()
	before := fault.Passed()
	dir := memoryDir(t)
	var told bytes.Buffer
	check(t, scenario(t.Context(), dir, &told))
	consistent(t, dir, told.String())
	out := map[string]int{}
	for _, label := range checkpoint.Labels() {
		out[label] = fault.Passed()[label] - before[label]
		if out[label] == 0 {
			t.Errorf("no test passes label %s", label)
		}
	}
	return out
}

// Not parallel: labels are counted over the whole process.
func TestErrorAtEveryLabel(t *testing.T) {
	for label, n := range passes(t) {
		for nth := 1; nth <= n; nth++ {
			for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
				t.Run(fmt.Sprintf("%s#%d/%d", label, nth, errno), func(t *testing.T) { errorAt(t, label, nth, errno) })
			}
		}
	}
}

func errorAt(t *testing.T, label string, nth int, errno syscall.Errno) {
	dir := memoryDir(t)
	var told bytes.Buffer
	clear := fault.Set(label, nth, fault.Error(errno))
	err := scenario(t.Context(), dir, &told)
	clear()
	if !errors.Is(err, errno) {
		t.Fatalf("got %v, want %v", err, errno)
	}
	want := []protocol.Code{protocol.CodeCaptureFailed, protocol.CodeInternal}
	if errno == syscall.ENOSPC {
		want = []protocol.Code{protocol.CodeDiskFull}
	}
	if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != want[0] && e.Code != want[len(want)-1] {
		t.Errorf("code %s of %v, want one of %v", protocol.CodeOf(err), err, want)
	}
	for _, sub := range stores {
		left, err := filepath.Glob(filepath.Join(dir, sub, "tmp", "*"))
		check(t, err)
		more, err := filepath.Glob(filepath.Join(dir, sub, "*", "*", "manifest.new"))
		check(t, err)
		left = append(left, more...)
		// What was renamed away and could not be unlinked stays for Sweep.
		if len(left) > 0 && label != "checkpoint.remove.unlink" {
			t.Errorf("left: %v", left)
		}
	}
	consistent(t, dir, told.String())
	told.Reset()
	check(t, scenario(t.Context(), dir, &told))
	consistent(t, dir, told.String())
}

func TestKillAtEveryLabel(t *testing.T) {
	self, err := os.Executable()
	check(t, err)
	for label, n := range passes(t) {
		for nth := 1; nth <= n; nth++ {
			t.Run(fmt.Sprintf("%s#%d", label, nth), func(t *testing.T) {
				t.Parallel() // the label is armed in the child only
				dir := memoryDir(t)
				cmd := exec.CommandContext(t.Context(), self)
				cmd.Env = append(os.Environ(), childEnv+"="+dir, fmt.Sprintf("%s=%s#%d=kill", fault.Env, label, nth))
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				told, err := cmd.Output()
				exit, ok := errors.AsType[*exec.ExitError](err)
				if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("child: %v, want it killed; %s", err, stderr.String())
				}
				consistent(t, dir, string(told))
				for _, sub := range stores {
					s := open(t, filepath.Join(dir, sub), checkpoint.Options{})
					if _, err := s.Sweep(nil); err != nil {
						t.Error(err)
					}
					use, err := s.Usage()
					check(t, err)
					if use.Temporary.Entries != 0 {
						t.Errorf("%s: %d temporary entries after Sweep", sub, use.Temporary.Entries)
					}
				}
				noLeftFrames(t, filepath.Join(dir, "framed"))
				var again bytes.Buffer
				check(t, scenario(t.Context(), dir, &again))
				consistent(t, dir, again.String())
			})
		}
	}
}

// noLeftFrames tells that after a collection nothing is stored twice, and no
// frames for nobody.
func noLeftFrames(t *testing.T, dir string) {
	t.Helper()
	s := open(t, dir, checkpoint.Options{})
	_, err := s.Collect(t.Context(), checkpoint.CollectOptions{})
	check(t, err)
	list, _, err := s.List()
	check(t, err)
	needed := map[string]bool{}
	for _, m := range list {
		files, err := s.Files(m.ID)
		check(t, err)
		if m.Files.Frames == nil {
			continue
		}
		if _, err := os.Stat(files.Pages); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("pages beside frames: %v", err)
		}
		for _, o := range m.Files.Frames.Objects {
			needed[o.Name] = true
		}
	}
	objects, err := filepath.Glob(filepath.Join(dir, "objects", "*"))
	check(t, err)
	if len(objects) != len(needed) {
		t.Errorf("%d objects, %d needed", len(objects), len(needed))
	}
}

// TestOrder holds MakeDurable to its order: content, then directories, then
// the manifest that says so.
func TestOrder(t *testing.T) {
	s := open(t, memoryDir(t), checkpoint.Options{})
	base := protocol.NewBaseID()
	check(t, makeTemplate(t.Context(), s, base))
	id := publish(t, s, manifest(base))
	var got []string
	for _, label := range checkpoint.Labels() {
		for nth := 1; nth <= 4; nth++ {
			defer fault.Set(label, nth, func(l string) error { got = append(got, strings.TrimPrefix(l, "checkpoint.")); return nil })()
		}
	}
	check(t, s.MakeDurable(t.Context(), id))
	want := "base.durable.ram.fsync base.durable.state.fsync base.durable.dir.fsync base.durable.parent.fsync base.durable.parent.fsync base.durable.parent.fsync " +
		"rewrite.write rewrite.fsync rewrite.rename rewrite.dir.fsync " +
		"durable.state.fsync durable.pages.fsync durable.dir.fsync durable.parent.fsync durable.parent.fsync durable.parent.fsync " +
		"rewrite.write rewrite.fsync rewrite.rename rewrite.dir.fsync"
	if strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
}

// TestFsyncIsNotRepeated: after a failed fsync the next one may lie.
func TestFsyncIsNotRepeated(t *testing.T) {
	for _, label := range []string{"checkpoint.durable.pages.fsync", "checkpoint.rewrite.dir.fsync", "checkpoint.base.durable.ram.fsync"} {
		s := open(t, memoryDir(t), checkpoint.Options{})
		base := addBase(t, s, checkpoint.Origin{})
		if !strings.Contains(label, "base") {
			check(t, s.MakeBaseDurable(t.Context(), base))
		}
		id := publish(t, s, manifest(base))
		clear := fault.Set(label, 1, fault.Error(syscall.EIO))
		code(t, s.MakeDurable(t.Context(), id), protocol.CodeCaptureFailed)
		clear()
		if err := s.MakeDurable(t.Context(), id); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: second MakeDurable: %v, want the first one's error", label, err)
		}
		check(t, s.Check(t.Context(), id))
		check(t, s.Remove(id))
	}
}
