package state_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/protocol"
)

func open(t *testing.T) *state.Dir {
	t.Helper()
	d, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newRun(t *testing.T, d *state.Dir) *state.Run {
	t.Helper()
	r, err := d.NewRun()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhere(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "")
	flag, env := filepath.Join(home, "flag"), filepath.Join(home, "env")
	t.Setenv(state.Env, env)
	for path, want := range map[string]string{flag: flag, "": env} {
		d, err := state.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if d.Path() != want {
			t.Errorf("Open(%q) is %s, want %s", path, d.Path(), want)
		}
		info, err := os.Stat(filepath.Join(want, "runs"))
		if err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("runs: %v, %v", info, err)
		}
	}
	if os.Geteuid() != 0 {
		t.Setenv(state.Env, "")
		if d, err := state.Open(""); err != nil || d.Path() != filepath.Join(home, ".local", "state", "ratoon") {
			t.Errorf("without a name: %v, %v", d, err)
		}
	}
	file := filepath.Join(home, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := state.Open(filepath.Join(file, "x"))
	if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("below a file: %v", err)
	}
}

// A run belongs to its process until that closes it.
func TestRuns(t *testing.T) {
	t.Parallel()
	d := open(t)
	one, two := newRun(t, d), newRun(t, d)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(two.Path, old, old); err != nil {
		t.Fatal(err)
	}
	if paths, err := d.Paths(); err != nil || !slices.Equal(paths, []string{two.Path, one.Path}) {
		t.Errorf("got %v, %v, want the oldest first", paths, err)
	}
	if _, err := d.Take(one.Path); protocol.CodeOf(err) != protocol.CodeBusy {
		t.Errorf("take a run that lives: got %v, want %s", err, protocol.CodeBusy)
	}
	if _, err := d.Look(one.Path); protocol.CodeOf(err) != protocol.CodeBusy {
		t.Errorf("look at a run that lives: got %v, want %s", err, protocol.CodeBusy)
	}
	if err := errors.Join(one.Close(), one.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // any number may look
		db, err := d.Look(one.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
	}
	if err := two.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(two.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a removed run is there: %v", err)
	}
	if _, err := d.Take(two.Path); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("take what is gone: got %v, want %s", err, protocol.CodeNotFound)
	}
	empty := filepath.Join(filepath.Dir(one.Path), "empty")
	if err := os.Mkdir(empty, 0o711); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Take(empty); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("take a run without a journal: got %v, want %s", err, protocol.CodeNotFound)
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("take left %v, %v", entries, err)
	}
}

// Processes that begin while others clean up keep their runs.
func TestBeginWhileSwept(t *testing.T) {
	t.Parallel()
	d := open(t)
	stop := make(chan struct{})
	var sweeper sync.WaitGroup
	sweeper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			paths, err := d.Paths()
			if err != nil {
				t.Error(err)
				return
			}
			for _, path := range paths {
				if r, err := d.Take(path); err == nil {
					if err := r.Remove(); err != nil {
						t.Errorf("remove %s: %v", path, err)
					}
				}
			}
		}
	})
	for range 30 {
		r, err := d.NewRun()
		if err != nil {
			t.Errorf("begin: %v", err)
			break
		}
		if _, err := os.Stat(filepath.Join(r.Path, "journal.db")); err != nil {
			t.Errorf("a run lost its journal: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	sweeper.Wait()
}
