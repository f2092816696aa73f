package vmm

import (
	"fmt"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// Reason says why a machine ended.
type Reason string

// The reasons.
const (
	// ReasonKilled: by SIGKILL, from Kill or anybody else.
	ReasonKilled Reason = "killed"
	// ReasonExited: the VMM gave up or crashed; see status and log.
	ReasonExited Reason = "exited"
	// ReasonReset, ReasonPoweroff, ReasonPanic: the guest's doing.
	ReasonReset    Reason = "guest reset"
	ReasonPoweroff Reason = "guest power-off"
	ReasonPanic    Reason = "guest panic"
)

// EndError is why a machine ended.
type EndError struct {
	Reason Reason
	// Status is the process's, as "exit status 1" or "signal: killed". That of
	// an adopted one goes to its parent, and is not known.
	Status string
	// Log is the beginning of what the VMM printed. It may hold anything.
	Log string
}

func (e *EndError) Error() string {
	s := fmt.Sprintf("machine ended: %s", e.Reason)
	if e.Reason == ReasonExited || e.Reason == ReasonKilled {
		s += " (" + e.Status + ")"
	}
	if log := strings.TrimSpace(e.Log); log != "" {
		s += ": " + fmt.Sprintf("%.400q", log[max(0, len(log)-400):])
	}
	return s
}

// Is matches CodeSandboxStopped, which is what the end of its machine means to
// a user.
func (e *EndError) Is(target error) bool {
	t, ok := target.(*protocol.Error)
	return ok && t.Code == protocol.CodeSandboxStopped
}
