package journal_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/journal"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

func open(t *testing.T, path string, o journal.Options) *journal.DB {
	t.Helper()
	db, err := journal.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func fresh(t *testing.T) (*journal.DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.db")
	return open(t, path, journal.Options{}), path
}

// tester is what testing and rapid have in common.
type tester interface {
	Helper()
	Errorf(string, ...any)
	Fatal(...any)
}

// content is one sandbox's journal as tables.
func content(t tester, j sandbox.Journal, tables ...string) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	err := j.View(func(tx sandbox.Tx) error {
		for _, table := range tables {
			last := ""
			err := tx.Each(table, func(key string, value []byte) error {
				if key <= last {
					t.Errorf("%s comes after %s", key, last)
				}
				last = key
				if out[table] == nil {
					out[table] = map[string]string{}
				}
				out[table][key] = string(value)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func put(t tester, j sandbox.Journal, label, table, key, value string) error {
	t.Helper()
	return j.Update(label, func(tx sandbox.Tx) error { return tx.Put(table, key, []byte(value)) })
}

// Any transactions leave what a map would hold, also for the next process, and
// those of one sandbox do not touch another's.
func TestModel(t *testing.T) {
	t.Parallel()
	db, path := fresh(t)
	tables := []string{"line", "vm"}
	names := rapid.SampledFrom([]string{"a", "b", "br-x/000001", "br-x/000002"})
	known := map[protocol.SandboxID]bool{}
	rapid.Check(t, func(t *rapid.T) {
		id := protocol.NewSandboxID()
		j, want := db.Sandbox(id), map[string]map[string]string{}
		if got := content(t, j, tables...); len(got) > 0 {
			t.Fatalf("a new sandbox has %v", got)
		}
		refused := errors.New("refused")
		for range rapid.IntRange(1, 5).Draw(t, "transactions") {
			next := map[string]map[string]string{}
			for table, rows := range want {
				next[table] = maps.Clone(rows)
			}
			fail := rapid.Bool().Draw(t, "fail")
			err := j.Update("journal.test", func(tx sandbox.Tx) error {
				for range rapid.IntRange(0, 4).Draw(t, "writes") {
					table, key := rapid.SampledFrom(tables).Draw(t, "table"), names.Draw(t, "key")
					if rapid.Bool().Draw(t, "delete") {
						delete(next[table], key)
						if err := tx.Delete(table, key); err != nil {
							return err
						}
					} else {
						value := rapid.String().Draw(t, "value")
						if next[table] == nil {
							next[table] = map[string]string{}
						}
						next[table][key] = value
						if err := tx.Put(table, key, []byte(value)); err != nil {
							return err
						}
					}
					want, there := next[table][key]
					if got := tx.Get(table, key); string(got) != want || there != (got != nil) {
						t.Fatalf("reads %q after writing %q", got, want)
					}
				}
				if fail {
					return refused
				}
				return nil
			})
			if fail != errors.Is(err, refused) || !fail && err != nil {
				t.Fatalf("update: %v", err)
			}
			if !fail {
				want, known[id] = next, true
			}
		}
		maps.DeleteFunc(want, func(_ string, rows map[string]string) bool { return len(rows) == 0 })
		if diff := cmp.Diff(want, content(t, j, tables...)); diff != "" {
			t.Fatalf("journal (-want +got):\n%s", diff)
		}
	})
	ids, err := db.Sandboxes()
	if err != nil || len(ids) != len(known) {
		t.Errorf("got %d sandboxes, %v, want %d", len(ids), err, len(known))
	}
	before := content(t, db.Sandbox(ids[0]), tables...)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, path, journal.Options{Existing: true})
	if diff := cmp.Diff(before, content(t, db.Sandbox(ids[0]), tables...)); diff != "" {
		t.Errorf("reopened (-want +got):\n%s", diff)
	}
}

// A fault before the transaction leaves nothing, one after it everything;
// neither tells.
func TestFaults(t *testing.T) {
	db, _ := fresh(t)
	j := db.Sandbox(protocol.NewSandboxID())
	for label, there := range map[string]bool{"journal.before": false, "journal.behind.after": true} {
		clear := fault.Set(label, 1, fault.Error(syscall.ENOSPC))
		defer clear()
		name := map[bool]string{false: "journal.before", true: "journal.behind"}[there]
		if err := put(t, j, name, "vm", name, "x"); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: got %v, want ENOSPC", label, err)
		}
		if _, got := content(t, j, "vm")["vm"][name]; got != there {
			t.Errorf("%s: written %v, want %v", label, got, there)
		}
	}
	if err := put(t, j, "journal.before", "vm", "later", "x"); err != nil {
		t.Errorf("after the faults: %v", err)
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	db, path := fresh(t)
	id := protocol.NewSandboxID()
	if err := put(t, db.Sandbox(id), "journal.test", "vm", "a", "x"); err != nil {
		t.Fatal(err)
	}
	for _, o := range []journal.Options{{}, {Existing: true}, {ReadOnly: true}} {
		if _, err := journal.Open(path, o); protocol.CodeOf(err) != protocol.CodeBusy {
			t.Errorf("%+v beside its owner: got %v, want %s", o, err, protocol.CodeBusy)
		}
	}
	if err := errors.Join(db.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	one, two := open(t, path, journal.Options{ReadOnly: true}), open(t, path, journal.Options{ReadOnly: true})
	for _, db := range []*journal.DB{one, two} {
		if ids, err := db.Sandboxes(); err != nil || !slices.Equal(ids, []protocol.SandboxID{id}) {
			t.Errorf("read only: got %v, %v", ids, err)
		}
	}
	if err := put(t, one.Sandbox(id), "journal.test", "vm", "b", "x"); err == nil {
		t.Error("a journal that was opened to be read was written")
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, o := range []journal.Options{{Existing: true}, {ReadOnly: true}} {
		if _, err := journal.Open(filepath.Join(dir, "none"), o); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Errorf("%+v: got %v, want %s", o, err, protocol.CodeNotFound)
		}
		if _, err := os.Stat(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v made a file", o)
		}
	}
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(junk, journal.Options{}); err == nil {
		t.Error("a file of zeros is opened as a journal")
	}
}

// Who waits for the lock while the owner removes the file must not believe to
// own what others will make there.
func TestRemovedWhileWaiting(t *testing.T) {
	t.Parallel()
	db, path := fresh(t)
	opened := make(chan error, 1)
	go func() {
		for {
			other, err := journal.Open(path, journal.Options{Existing: true})
			if protocol.CodeOf(err) == protocol.CodeBusy {
				continue
			}
			if err == nil {
				other.Close()
			}
			opened <- err
			return
		}
	}()
	if err := errors.Join(os.Remove(path), db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("got %v, want %s", err, protocol.CodeNotFound)
	}
}

// A process that is killed loses nothing that Update has returned for, and its
// lock with it.
func TestKilled(t *testing.T) {
	if path := os.Getenv("JOURNAL_TEST_CHILD"); path != "" {
		db := open(t, path, journal.Options{})
		j := db.Sandbox("sb-aaaaaaaaaaaaaaaa")
		if err := put(t, j, "journal.one", "vm", "one", "x"); err != nil {
			t.Fatal(err)
		}
		fault.Set("journal.two", 1, fault.Kill)
		put(t, j, "journal.two", "vm", "two", "x")
		t.Fatal("still alive")
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal.db")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "JOURNAL_TEST_CHILD="+path)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v\n%s", err, out)
	}
	db := open(t, path, journal.Options{Existing: true})
	want := map[string]map[string]string{"vm": {"one": "x"}}
	if diff := cmp.Diff(want, content(t, db.Sandbox("sb-aaaaaaaaaaaaaaaa"), "vm")); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}
