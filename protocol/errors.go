package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ratoon-project/ratoon/internal/jsonnum"
)

// Code is the stable name of a kind of failure, the same in Python, Go, the
// command line and on the wire.
type Code string

// The error catalogue. Each code has a remedy in Remedy.
const (
	CodeInvalidArgument   Code = "invalid_argument"
	CodeNotFound          Code = "not_found"
	CodeNotSupported      Code = "not_supported"
	CodeTooLarge          Code = "too_large"
	CodeBusy              Code = "busy"
	CodeConflict          Code = "conflict"
	CodeCancelled         Code = "cancelled"
	CodeTimeout           Code = "timeout"
	CodeInternal          Code = "internal"
	CodeProtocol          Code = "protocol_violation"
	CodeVersionMismatch   Code = "version_mismatch"
	CodeUnavailable       Code = "unavailable"
	CodeInterruptedByFork Code = "interrupted_by_fork"
	CodeWrongTimeline     Code = "wrong_timeline"
	CodeAgentRestarted    Code = "agent_restarted"
	CodeHostRestarted     Code = "host_restarted"
	CodeOverBudget        Code = "over_budget"
	CodePrepareFailed     Code = "prepare_failed"
	CodeCaptureFailed     Code = "capture_failed"
	CodeDiskFull          Code = "disk_full"
	CodeBranchFailed      Code = "branch_failed"
	CodeChildExited       Code = "child_exited"
	CodeChildLost         Code = "child_lost"
	CodeNotKept           Code = "not_kept"
	CodeUnknownCheckpoint Code = "unknown_checkpoint"
	CodeForeignCheckpoint Code = "foreign_checkpoint"
	CodeCheckpointLost    Code = "checkpoint_lost"
	CodeCheckpointRefused Code = "checkpoint_refused"
	CodeCheckpointInUse   Code = "checkpoint_in_use"
	CodeSandboxStopped    Code = "sandbox_stopped"
	CodeNoModel           Code = "no_model"
	CodeModelFailed       Code = "model_failed"
)

var remedies = map[Code]string{
	CodeInvalidArgument:   "correct the argument; the message names it and what is accepted",
	CodeNotFound:          "list what exists and use one of those names",
	CodeNotSupported:      "this build, driver or host cannot do it; `ratoon doctor` says what is missing",
	CodeTooLarge:          "send less at once, or put large data into /workspace",
	CodeBusy:              "wait and try again; another operation is under way",
	CodeConflict:          "use a new idempotency key for each new request",
	CodeCancelled:         "the call was cancelled; call again if it is still wanted",
	CodeTimeout:           "raise the timeout, or find out why it takes so long",
	CodeInternal:          "a defect of Ratoon; please report it with the message",
	CodeProtocol:          "the other end broke the protocol; use helpers and agentd of the same release",
	CodeVersionMismatch:   "use the same release at both ends; the message names both versions",
	CodeUnavailable:       "the other end cannot be reached; the message names the stage",
	CodeInterruptedByFork: "the call was under way when this copy was made; call again, as a new request",
	CodeWrongTimeline:     "a branch handle belongs to the timeline that made it; branch again here",
	CodeAgentRestarted:    "the agent in the guest was restarted while the call was pending; call again",
	CodeHostRestarted:     "the host was restarted while the call was pending; look at the tree, then call again",
	CodeOverBudget:        "a limit set at start was reached; the message names it, its limit and its use",
	CodePrepareFailed:     "the guest could not be stopped for a capture in time; nothing changed, call again",
	CodeCaptureFailed:     "the machine could not be captured; nothing changed; the message says why",
	CodeDiskFull:          "free disk space under the state directory (`ratoon checkpoint rm`), then call again",
	CodeBranchFailed:      "no child was started; the reasons per child are in the details",
	CodeChildExited:       "the child's program ended without ratoon.finish(); its status and standard error are in the details",
	CodeChildLost:         "the child's machine died or fell silent; branch again",
	CodeNotKept:           "the child must end with finish(keep=True) to be adopted",
	CodeUnknownCheckpoint: "no such checkpoint; `ratoon checkpoint ls` or ratoon.tree() lists them",
	CodeForeignCheckpoint: "a guest may name checkpoints of its own tree only",
	CodeCheckpointLost:    "the checkpoint's files are gone or damaged; use another one",
	CodeCheckpointRefused: "it was made by another VMM, CPU model, kernel, image or release; the message names which",
	CodeCheckpointInUse:   "others are based on it, an operation needs it, or it is pinned; remove those first, with --cascade, or unpin it",
	CodeSandboxStopped:    "its machine died; restore one of its checkpoints",
	CodeNoModel:           "start with --llm (see `ratoon run --help`)",
	CodeModelFailed:       "the model's server refused or failed; the message holds its answer",
}

// Codes lists the catalogue.
func Codes() []Code {
	out := make([]Code, 0, len(remedies))
	for c := range remedies {
		out = append(out, c)
	}
	return out
}

// Remedy says what a user can do about errors of the code.
func (c Code) Remedy() string { return remedies[c] }

// Error is a failure as it crosses a boundary. The zero value is no error.
type Error struct {
	Code    Code   `msgpack:"code" json:"code"`
	Message string `msgpack:"message" json:"message"`
	// Details holds values that a program may want: "status" and "stderr" of
	// a child, "budget", "limit" and "used" of an exhausted budget, and so on.
	Details map[string]any `msgpack:"details,omitempty" json:"details,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// UnmarshalJSON keeps whole numbers in Details whole, as msgpack does: a
// status is one that programs compare with integers.
func (e *Error) UnmarshalJSON(b []byte) error {
	type plain Error
	var p plain
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&p); err != nil {
		return err
	}
	for name, v := range p.Details {
		p.Details[name] = jsonnum.Whole(v)
	}
	*e = Error(p)
	return nil
}

// Is makes errors.Is match two protocol errors of equal code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf makes an error of a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns a copy of e with one detail added.
func (e *Error) With(name string, value any) *Error {
	c := *e
	c.Details = map[string]any{name: value}
	for k, v := range e.Details {
		if k != name {
			c.Details[k] = v
		}
	}
	return &c
}

// AsError finds the protocol error in err's chain; any other error becomes one
// of CodeInternal with err's text. It is nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Error() == err.Error() {
			return e
		}
		return &Error{Code: e.Code, Message: err.Error(), Details: e.Details}
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// CodeOf is the code of err, CodeInternal for an error without one.
func CodeOf(err error) Code {
	if e := AsError(err); e != nil {
		return e.Code
	}
	return ""
}
