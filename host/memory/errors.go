package memory

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ratoon-project/ratoon/protocol"
)

// Errors of this package; match with errors.Is.
var (
	// ErrNotMapped: the process does not map the base, or not all of it.
	ErrNotMapped = errors.New("base is not mapped in full")
	// ErrShared: the process maps the base shared, so what it writes goes into
	// the base and no delta exists.
	ErrShared = errors.New("base is mapped shared")
	// ErrAmbiguous: the process maps a part of the base more than once, so
	// that part has no single content.
	ErrAmbiguous = errors.New("base is mapped more than once")
)

// diskError adds the code that a user sees when the cause is a full disk.
func diskError(verb string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeDiskFull, "%s", verb), err)
	}
	return fmt.Errorf("%s: %w", verb, err)
}

func lost(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeCheckpointLost, format, args...)
}
