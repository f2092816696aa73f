package boot

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TakeSignals takes every signal and drops it: the kernel keeps those from
// PID 1 that have no handler, but the Go runtime has handlers for all, and
// would end the process.
func TakeSignals() error {
	c := make(chan os.Signal, 1)
	signal.Notify(c)
	go func() {
		for range c { //nolint:revive // that is all
		}
	}()
	return takeRealtime()
}

// dropSignalAddress is where a signal handler that does nothing begins.
func dropSignalAddress() uintptr

// takeRealtime gives the signals that the runtime leaves to a C library (32 to
// 34) a handler that drops them. The runtime's own handler would end the
// process. Without one the kernel spares PID 1 only while its main thread does
// not block signals, and the runtime blocks all of them for a moment whenever
// it starts a thread or a process: then the signal ends PID 1, and the kernel
// with it. A handler, unlike SIG_IGN, is not passed on to programs.
func takeRealtime() error {
	// The kernel's struct sigaction (include/linux/signal_types.h).
	var action struct {
		handler  uintptr
		flags    uint64
		restorer uintptr
		mask     uint64
	}
	sigaction := func(sig syscall.Signal, set, old unsafe.Pointer) error {
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(set), uintptr(old), unsafe.Sizeof(action.mask), 0, 0)
		if errno != 0 {
			return fmt.Errorf("set handler of signal %d: %w", int(sig), errno)
		}
		return nil
	}
	// The runtime's flags and restorer: on its signal stack.
	if err := sigaction(unix.SIGUSR1, nil, unsafe.Pointer(&action)); err != nil {
		return err
	}
	action.handler = dropSignalAddress()
	for sig := syscall.Signal(32); sig <= 34; sig++ {
		if err := sigaction(sig, unsafe.Pointer(&action), nil); err != nil {
			return err
		}
	}
	return nil
}
