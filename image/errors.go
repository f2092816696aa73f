package image

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/ratoon-project/ratoon/protocol"
)

// What a user can do something about; match with errors.Is.
var (
	ErrNoKernel         = errors.New("no guest kernel")
	ErrNoTool           = errors.New("a needed program is not installed")
	ErrNoUserNamespaces = errors.New("user namespaces cannot be used by this user")
	ErrNoNetwork        = errors.New("the package archive cannot be reached")
	ErrNoSpace          = errors.New("no disk space")
	ErrNoAgentd         = errors.New("agentd not found")
	ErrMissingModule    = errors.New("the kernel lacks a needed module")
)

// Error is a failure of a build with what to do about it.
type Error struct {
	Op     string // what was being done
	Err    error
	Remedy string
}

// Error is one line: causes that were joined follow one another.
func (e *Error) Error() string {
	cause := strings.ReplaceAll(e.Err.Error(), "\n", ": ")
	if e.Remedy == "" {
		return e.Op + ": " + cause
	}
	return fmt.Sprintf("%s: %s; %s", e.Op, cause, e.Remedy)
}

func (e *Error) Unwrap() error { return e.Err }

// Code is the wire code that err is reported under.
func Code(err error) protocol.Code {
	switch {
	case errors.Is(err, ErrNoSpace):
		return protocol.CodeDiskFull
	case errors.Is(err, ErrNoNetwork):
		return protocol.CodeUnavailable
	case errors.Is(err, ErrNoKernel), errors.Is(err, ErrNoTool), errors.Is(err, ErrNoUserNamespaces),
		errors.Is(err, ErrNoAgentd), errors.Is(err, ErrMissingModule):
		return protocol.CodeNotSupported
	}
	return protocol.CodeOf(err)
}

// explain turns the errno a user meets most into an Error with a remedy.
func explain(op, dir string, err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &Error{op, errors.Join(ErrNoSpace, err), "free some space under " + dir + " (an image needs about 1 GB while it is built)"}
	case errors.Is(err, fs.ErrPermission):
		return &Error{op, err, "the cache " + dir + " must be writable by this user"}
	}
	return fmt.Errorf("%s: %w", op, err)
}
