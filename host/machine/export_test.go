package machine

import (
	"testing"

	"github.com/ratoon-project/ratoon/protocol"
)

// For tests.
var (
	FreeUID     = freeUID
	UsedUIDs    = usedUIDs
	KillAndWait = killAndWait
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

// BeginCapture starts to write a checkpoint, until it is discarded.
func BeginCapture(t *testing.T, m *Machines) (discard func()) {
	t.Helper()
	p, err := m.store.Begin(protocol.NewCheckpointID())
	if err != nil {
		t.Fatal(err)
	}
	return p.Discard
}
