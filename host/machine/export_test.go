package machine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// For tests.
var (
	FreeUID     = freeUID
	UsedUIDs    = usedUIDs
	KillMachine = killMachine
	KillUser    = killUser
	LockFile    = lockFile
	TryLock     = tryLock
)

// FirstUID and CountUID are the range of FreeUID.
const (
	FirstUID = firstUID
	CountUID = countUID
)

// Key names the kind's template.
func (m *Machines) Key() string { return m.key() }

// Users is how many machines map each open base.
func (e *Engine) Users() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string]int{}
	for id, b := range e.bases {
		out[string(id)] = b.users
	}
	return out
}

// Record is what a machine's directory says of it.
type Record = record

// LeaveRoom makes the directory of a machine of an earlier process.
func LeaveRoom(t *testing.T, run string, r Record) {
	t.Helper()
	dir := filepath.Join(run, "vm", string(r.ID))
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "run", "deep"), 0o711), r.write(dir)); err != nil {
		t.Fatal(err)
	}
}

// Boot names this boot of the host.
func (e *Engine) Boot() string { return e.boot }

// BeginCapture starts to write a checkpoint, until it is discarded.
func BeginCapture(t *testing.T, m *Machines) (discard func()) {
	t.Helper()
	p, err := m.store.Begin(protocol.NewCheckpointID())
	if err != nil {
		t.Fatal(err)
	}
	return p.Discard
}

// BaseOf is what a machine maps.
func BaseOf(v sandbox.VM) *memory.Base { return v.(*VM).base.Base }
