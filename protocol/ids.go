package protocol

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
)

// Identifiers are a two-letter prefix, a dash and 16 characters of lower-case
// base32 (80 random bits): "cp-3jk5m2q7xw4n6c2a". They are safe as file names.
type (
	// SandboxID names what a user started.
	SandboxID string
	// LineID names a timeline and those that replace it by restore.
	LineID string
	// TimelineID names one running copy's line of execution. Never reused.
	TimelineID string
	// CheckpointID names one immutable checkpoint.
	CheckpointID string
	// BaseID names a guest-RAM image that is never written again.
	BaseID string
	// StreamID names one branch of the workspace log.
	StreamID string
	// BranchID names one branch operation and its result slots.
	BranchID string
	// VMID names one VM process of the host.
	VMID string
	// ExecID names one program started in a guest by the host.
	ExecID string
)

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newID(prefix string) string {
	var b [10]byte
	rand.Read(b[:])
	return prefix + "-" + idEncoding.EncodeToString(b[:])
}

func parseID(prefix, kind, s string) (string, error) {
	rest, ok := strings.CutPrefix(s, prefix+"-")
	if !ok || len(rest) != 16 || strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return "", Errorf(CodeInvalidArgument, "%q is not a %s id (%s- and 16 characters a-z, 2-7)", clip(s), kind, prefix)
	}
	return s, nil
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

// New identifiers.
func NewSandboxID() SandboxID       { return SandboxID(newID("sb")) }
func NewLineID() LineID             { return LineID(newID("ln")) }
func NewTimelineID() TimelineID     { return TimelineID(newID("tl")) }
func NewCheckpointID() CheckpointID { return CheckpointID(newID("cp")) }
func NewBaseID() BaseID             { return BaseID(newID("ba")) }
func NewStreamID() StreamID         { return StreamID(newID("st")) }
func NewBranchID() BranchID         { return BranchID(newID("br")) }
func NewVMID() VMID                 { return VMID(newID("vm")) }
func NewExecID() ExecID             { return ExecID(newID("ex")) }

// ParseSandboxID checks an id that came from outside. All Parse functions
// answer CodeInvalidArgument for anything that is not an id of their kind.
func ParseSandboxID(s string) (SandboxID, error) {
	v, err := parseID("sb", "sandbox", s)
	return SandboxID(v), err
}

// ParseLineID checks a line id.
func ParseLineID(s string) (LineID, error) {
	v, err := parseID("ln", "line", s)
	return LineID(v), err
}

// ParseTimelineID checks a timeline id.
func ParseTimelineID(s string) (TimelineID, error) {
	v, err := parseID("tl", "timeline", s)
	return TimelineID(v), err
}

// ParseCheckpointID checks a checkpoint id.
func ParseCheckpointID(s string) (CheckpointID, error) {
	v, err := parseID("cp", "checkpoint", s)
	return CheckpointID(v), err
}

// ParseBaseID checks a base id.
func ParseBaseID(s string) (BaseID, error) {
	v, err := parseID("ba", "base", s)
	return BaseID(v), err
}

// ParseStreamID checks a stream id.
func ParseStreamID(s string) (StreamID, error) {
	v, err := parseID("st", "stream", s)
	return StreamID(v), err
}

// ParseBranchID checks a branch id.
func ParseBranchID(s string) (BranchID, error) {
	v, err := parseID("br", "branch", s)
	return BranchID(v), err
}

// ParseExecID checks an exec id.
func ParseExecID(s string) (ExecID, error) {
	v, err := parseID("ex", "exec", s)
	return ExecID(v), err
}

// Key names one call of a guest program: unique over clones (timeline) and
// over restarts of agentd's worker (start).
type Key struct {
	Timeline TimelineID `msgpack:"timeline" json:"timeline"`
	Start    uint64     `msgpack:"start" json:"start"`
	Sequence uint64     `msgpack:"sequence" json:"sequence"`
}

// IsZero tells that no call is named, as for an operator's operation.
func (k Key) IsZero() bool { return k == Key{} }

func (k Key) String() string { return fmt.Sprintf("%s/%d/%d", k.Timeline, k.Start, k.Sequence) }

// Freeze numbers one freeze of one timeline, from 1, growing.
type Freeze uint64

// Position is a place in the workspace log.
type Position struct {
	Stream   StreamID `msgpack:"stream" json:"stream"`
	Sequence uint64   `msgpack:"sequence" json:"sequence"`
}
