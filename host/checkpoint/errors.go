package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/ratoon-project/ratoon/protocol"
)

// Reasons for which a manifest cannot be used; callers see the protocol code.
var (
	errDamaged = errors.New("damaged")
	errNewer   = errors.New("written by a newer release")
)

// damage is content that is not what a manifest says, or cannot be read, from a
// byte of a file on.
type damage struct {
	offset int64
	reason string
}

func (d *damage) Error() string { return fmt.Sprintf("damaged at byte %d: %s", d.offset, d.reason) }

// Is makes it errDamaged.
func (d *damage) Is(target error) bool { return target == errDamaged }

func damagedAt(offset int64, format string, args ...any) error {
	return &damage{offset, fmt.Sprintf(format, args...)}
}

// failure is an error with a protocol code and the cause that errors.Is finds.
type failure struct {
	coded *protocol.Error
	cause error
}

func (f *failure) Error() string   { return f.coded.Message }
func (f *failure) Unwrap() []error { return []error{f.coded, f.cause} }

// typed gives err the code, or the one that its cause calls for. An error
// that has a code keeps it.
func typed(code protocol.Code, what string, err error) error {
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = protocol.CodeDiskFull
	case errors.Is(err, errNewer):
		code = protocol.CodeCheckpointRefused
	case errors.Is(err, context.DeadlineExceeded):
		code = protocol.CodeTimeout
	case errors.Is(err, context.Canceled):
		code = protocol.CodeCancelled
	}
	return &failure{protocol.Errorf(code, "%s: %v", what, err), err}
}

// unusable is the error of a stored thing whose file cannot be used. An error
// that names a file keeps it.
func unusable(what, file string, err error) error {
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Details["file"] != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	e := typed(protocol.CodeCheckpointLost, what+": file "+file, err)
	if f, ok := errors.AsType[*failure](e); ok {
		f.coded = f.coded.With("file", file)
		if d, ok := errors.AsType[*damage](err); ok {
			f.coded = f.coded.With("offset", d.offset)
		}
	}
	return e
}
