package checkpoint

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ratoon-project/ratoon/protocol"
)

// Options of Open.
type Options struct {
	// Log is told about what cannot be returned; nil: discarded.
	Log *slog.Logger
	// ReadOnly is for looking at a directory that another process writes:
	// nothing is made, and every call that would change something is refused.
	ReadOnly bool
	// Reserve is how many bytes Room leaves free; 0: 64 MiB.
	Reserve int64
	// Limit is how many bytes of disk checkpoints and bases may take, above which
	// Room refuses; 0: no limit.
	Limit int64
	// BootID names this boot of the host; empty: the kernel's.
	BootID string
}

// defaultReserve keeps room for the journal and the workspace log, which must
// be able to say that a capture failed.
const defaultReserve = 64 << 20

// Store is one directory of checkpoints and bases.
type Store struct {
	dir      string
	log      *slog.Logger
	readOnly bool
	reserve  int64
	limit    int64
	boot     string

	freed atomic.Int64 // bytes

	// Lock order: packing, ids, refs, mu.

	// packing is held by whoever writes frames or points checkpoints to others.
	packing sync.Mutex

	// ids makes calls that change one entry run one after another.
	ids keyed
	// refs is held shared while a reference to an entry is published, and
	// exclusively while an entry is removed.
	refs sync.RWMutex

	mu      sync.Mutex
	pending map[string]struct{} // what is in use under tmp
	holds   map[string]int
	failed  map[string]error         // fsync failed in this process
	checked map[fingerprint]struct{} // bases whose digest was right
	// summaries of the checkpoints that were listed, and manifests of bases.
	summaries     map[protocol.CheckpointID]summarized[Manifest]
	baseManifests map[protocol.BaseID]summarized[BaseManifest]
}

// Open opens a store, making its directories as needed.
func Open(dir string, opt Options) (*Store, error) {
	s := &Store{
		dir: dir, log: opt.Log, readOnly: opt.ReadOnly, reserve: opt.Reserve, limit: opt.Limit, boot: opt.BootID,
		pending: map[string]struct{}{}, holds: map[string]int{},
		failed: map[string]error{}, checked: map[fingerprint]struct{}{}, summaries: map[protocol.CheckpointID]summarized[Manifest]{}, baseManifests: map[protocol.BaseID]summarized[BaseManifest]{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.reserve == 0 {
		s.reserve = defaultReserve
	}
	if s.boot == "" {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, typed(protocol.CodeInternal, "open checkpoint store", err)
		}
		s.boot = strings.TrimSpace(string(b))
	}
	if s.readOnly {
		if _, err := os.Stat(dir); err != nil {
			return nil, typed(protocol.CodeNotFound, "open checkpoint store", err)
		}
		return s, nil
	}
	for _, d := range []string{s.checkpoints(), s.bases(), s.objects(), s.temporary(), s.lost()} {
		if err := os.MkdirAll(d, dirMode); err != nil {
			return nil, typed(protocol.CodeInternal, "open checkpoint store", err)
		}
	}
	return s, nil
}

// Dir is the directory that was opened.
func (s *Store) Dir() string { return s.dir }

func (s *Store) checkpoints() string { return filepath.Join(s.dir, "checkpoints") }
func (s *Store) bases() string       { return filepath.Join(s.dir, "bases") }
func (s *Store) temporary() string   { return filepath.Join(s.dir, "tmp") }
func (s *Store) lost() string        { return filepath.Join(s.dir, "lost") }
func (s *Store) objects() string     { return filepath.Join(s.dir, "objects") }

// The ids below must have been parsed.

func (s *Store) checkpointDir(id protocol.CheckpointID) string {
	return filepath.Join(s.checkpoints(), string(id))
}

func (s *Store) baseDir(id protocol.BaseID) string { return filepath.Join(s.bases(), string(id)) }

func (s *Store) objectPath(name string) string { return filepath.Join(s.objects(), name) }

func (s *Store) tombstone(id protocol.CheckpointID) string {
	return filepath.Join(s.lost(), string(id))
}

func (s *Store) writable() error {
	if s.readOnly {
		return protocol.Errorf(protocol.CodeNotSupported, "%s is open for reading only; ask the process that owns it", s.dir)
	}
	return nil
}

// Hold keeps a checkpoint from being removed by this process until release
// is called; more than once has no effect.
func (s *Store) Hold(id protocol.CheckpointID) (release func(), err error) {
	if _, err := s.Get(id); err != nil {
		return nil, err
	}
	return s.hold(string(id)), nil
}

// HoldBase does for a base what Hold does for a checkpoint: VMs map it.
func (s *Store) HoldBase(id protocol.BaseID) (release func(), err error) {
	s.refs.RLock()
	defer s.refs.RUnlock()
	if _, err := s.Base(id); err != nil {
		return nil, err
	}
	return s.hold(string(id)), nil
}

func (s *Store) hold(id string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[id]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holds[id]--; s.holds[id] == 0 {
			delete(s.holds, id)
		}
	})
}

func (s *Store) held(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[id] > 0
}

// makeTemporary makes a directory that Sweep leaves alone until forget.
func (s *Store) makeTemporary(id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := os.MkdirTemp(s.temporary(), id+".")
	if err != nil {
		return "", err
	}
	s.pending[dir] = struct{}{}
	return dir, nil
}

func (s *Store) remember(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending[path] = struct{}{}
}

func (s *Store) forget(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, dir)
}

// keyed is a set of mutexes by name.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*keyedLock
}

type keyedLock struct {
	sync.Mutex
	users int
}

func (k *keyed) lock(name string) (unlock func()) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*keyedLock{}
	}
	l := k.locks[name]
	if l == nil {
		l = &keyedLock{}
		k.locks[name] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, name)
		}
	}
}

func checkpointName(id protocol.CheckpointID) string { return fmt.Sprintf("checkpoint %s", id) }
func baseName(id protocol.BaseID) string             { return fmt.Sprintf("base %s", id) }
