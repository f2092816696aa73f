package machine

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

// Key names the engine's template.
func (e *Engine) Key() string { return e.key() }

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
