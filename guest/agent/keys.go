package agent

// Names of log attributes.
const (
	keyError    = "error"
	keyFreeze   = "freeze"
	keyKind     = "kind"
	keyLink     = "link"
	keyPID      = "pid"
	keyReason   = "reason"
	keyState    = "state"
	keyTimeline = "timeline"
)
