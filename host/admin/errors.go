package admin

import (
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/ratoon-project/ratoon/protocol"
)

// Error is a failure in an answer or at the end of a stream.
type Error struct {
	Code    protocol.Code  `json:"code"`
	Message string         `json:"message"`
	Remedy  string         `json:"remedy"`
	Details map[string]any `json:"details,omitempty"`
}

// toWire is err for a client.
func toWire(err error) *Error {
	e := protocol.AsError(err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		e = &protocol.Error{Code: protocol.CodeDiskFull, Message: err.Error()}
	}
	return &Error{Code: e.Code, Message: e.Message, Remedy: e.Code.Remedy(), Details: e.Details}
}

// err is the error that the server had.
func (e *Error) err() error {
	return &protocol.Error{Code: e.Code, Message: e.Message, Details: e.Details}
}

// statuses of codes; the others are 500.
var statuses = map[protocol.Code]int{
	protocol.CodeInvalidArgument:   http.StatusBadRequest,
	protocol.CodeNotFound:          http.StatusNotFound,
	protocol.CodeUnknownCheckpoint: http.StatusNotFound,
	protocol.CodeBusy:              http.StatusConflict,
	protocol.CodeConflict:          http.StatusConflict,
	protocol.CodeSandboxStopped:    http.StatusConflict,
	protocol.CodeCheckpointInUse:   http.StatusConflict,
	protocol.CodeForeignCheckpoint: http.StatusConflict,
	protocol.CodeCheckpointRefused: http.StatusConflict,
	protocol.CodeCancelled:         http.StatusConflict,
	protocol.CodePrepareFailed:     http.StatusConflict,
	protocol.CodeHostRestarted:     http.StatusConflict,
	protocol.CodeCheckpointLost:    http.StatusGone,
	protocol.CodeTooLarge:          http.StatusRequestEntityTooLarge,
	protocol.CodeOverBudget:        http.StatusTooManyRequests,
	protocol.CodeNotSupported:      http.StatusNotImplemented,
	protocol.CodeTimeout:           http.StatusGatewayTimeout,
	protocol.CodeUnavailable:       http.StatusServiceUnavailable,
	protocol.CodeDiskFull:          http.StatusInsufficientStorage,
}

func statusOf(err error) int {
	if s := statuses[toWire(err).Code]; s != 0 {
		return s
	}
	if errors.Is(err, fs.ErrNotExist) {
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}
