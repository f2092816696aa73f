// Package state knows the layout of the state directory and the run
// directories of host processes in it.
//
//	dir, err := state.Open("")                     // $RATOON_STATE_DIR or the user's default
//	run, err := dir.NewRun()                       // of this process
//	defer run.Close()
//	paths, err := dir.Paths()                      // of all, running or not
//	old, err := dir.Take(paths[0])                 // of a process that ended
//
//	<state>/cache/images     kernels and root images     shared, under flock
//	<state>/cache/templates  booted templates            shared, under flock
//	<state>/runs/<id>/       one host process: journal.db (its lock), checkpoints,
//	                         bases, vm, logs, ratoon.sock
//	<state>/daemon/          the same of the long-lived one
//
// A run directory whose journal no process has open belongs to a host process
// that ended; recovery and removal are the caller's. Safe for concurrent use
// by any number of processes.
package state

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/journal"
	"github.com/ratoon-project/ratoon/protocol"
)

// Env names the state directory when no flag does.
const Env = "RATOON_STATE_DIR"

const (
	nameRuns    = "runs"
	nameDaemon  = "daemon"
	nameJournal = "journal.db"
)

// Dir is a state directory.
type Dir struct{ path string }

// Open makes the state directory if there is none: path, else what Env names,
// else /var/lib/ratoon for root and $XDG_STATE_HOME/ratoon for others.
func Open(path string) (*Dir, error) {
	if path == "" {
		path = os.Getenv(Env)
	}
	if path == "" {
		path = defaultPath()
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find state directory: %w", err)
	}
	for _, d := range []string{abs, filepath.Join(abs, nameRuns), filepath.Join(abs, "cache")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "make state directory: %v; choose another one with --state-dir or %s", err, Env)
		}
	}
	return &Dir{abs}, nil
}

func defaultPath() string {
	if os.Geteuid() == 0 {
		return "/var/lib/ratoon"
	}
	if x := os.Getenv("XDG_STATE_HOME"); x != "" {
		return filepath.Join(x, "ratoon")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "ratoon-state"
	}
	return filepath.Join(home, ".local", "state", "ratoon")
}

func (d *Dir) runs() string { return filepath.Join(d.path, nameRuns) }

// Path is where the directory lies.
func (d *Dir) Path() string { return d.path }

// Templates is the cache of templates.
func (d *Dir) Templates() string { return filepath.Join(d.path, "cache", "templates") }

// Run is the directory of one host process.
type Run struct {
	Path    string
	Journal *journal.DB
}

// NewRun makes a run directory and takes its lock.
func (d *Dir) NewRun() (*Run, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	path, err := os.MkdirTemp(d.runs(), "")
	if err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	if err := os.Chmod(path, 0o711); err != nil {
		return nil, errors.Join(fmt.Errorf("make run directory: %w", err), os.RemoveAll(path))
	}
	db, err := journal.Open(filepath.Join(path, nameJournal), journal.Options{})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &Run{path, db}, nil
}

// DaemonPath is the directory of the long-lived host process, which need not
// exist.
func (d *Dir) DaemonPath() string { return filepath.Join(d.path, nameDaemon) }

// Daemon opens the directory of the long-lived host process and takes its
// lock. It is CodeBusy while another one has it.
func (d *Dir) Daemon() (*Run, error) {
	path := d.DaemonPath()
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, fmt.Errorf("make directory of the daemon: %w", err)
	}
	db, err := journal.Open(filepath.Join(path, nameJournal), journal.Options{})
	if err != nil {
		return nil, err
	}
	return &Run{path, db}, nil
}

// lock keeps a new run's journal from being taken before its process has its
// lock. It is held for moments.
func (d *Dir) lock() (unlock func(), err error) {
	f, err := os.Open(d.runs())
	if err != nil {
		return nil, fmt.Errorf("open run directories: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock run directories: %w", err)
		}
	}
}

// Socket is where the run's process answers while it lives.
func (r *Run) Socket() string { return filepath.Join(r.Path, "ratoon.sock") }

// Logs is where output of programs is kept.
func (r *Run) Logs() string { return filepath.Join(r.Path, "logs") }

// Close gives the lock back. The directory stays.
func (r *Run) Close() error { return r.Journal.Close() }

// Remove removes the directory and gives its lock back.
func (r *Run) Remove() error {
	return errors.Join(os.RemoveAll(r.Path), r.Journal.Close())
}

// Paths lists all run directories, oldest first.
func (d *Dir) Paths() ([]string, error) {
	entries, err := os.ReadDir(d.runs())
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	type dated struct {
		path string
		at   time.Time
	}
	var all []dated
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() {
			continue
		}
		all = append(all, dated{filepath.Join(d.runs(), e.Name()), info.ModTime()})
	}
	slices.SortFunc(all, func(a, b dated) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path)) })
	out := make([]string, len(all))
	for i, a := range all {
		out[i] = a.path
	}
	return out, nil
}

// Take takes over the run directory of a process that ended. It is
// CodeBusy while the process lives, CodeNotFound when it has no journal.
func (d *Dir) Take(path string) (*Run, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	db, err := journal.Open(filepath.Join(path, nameJournal), journal.Options{Existing: true})
	if err != nil {
		return nil, err
	}
	return &Run{path, db}, nil
}

// Look opens the journal of a run without its lock, for reading; errors are
// those of Take.
func (d *Dir) Look(path string) (*journal.DB, error) {
	return journal.Open(filepath.Join(path, nameJournal), journal.Options{ReadOnly: true})
}
