package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// timerSlack is how late the kernel may wake a thread of the agent's. The Go
// runtime's monitor sleeps for 20 µs at a time while anything runs, which in a
// guest is an interrupt and two switches of the address space each, and it
// takes the processor from a goroutine that is in a system call for longer.
// Whatever the agent waits for is a matter of milliseconds at least.
const timerSlack = 4 * time.Millisecond

// relaxTimers sets timerSlack for the threads of this process. Those that it
// starts inherit it, and so does the worker; guest/exec sets it back for users.
func relaxTimers(m *machine) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		// /proc/self/task/TID has no such file, /proc/TID has.
		file := filepath.Join("/proc", t.Name(), "timerslack_ns")
		if err := os.WriteFile(file, []byte(strconv.FormatInt(int64(timerSlack), 10)), 0); err != nil {
			m.log.Warn("the agent will wake more often than it needs", "error", fmt.Errorf("set timer slack: %w", err))
			break
		}
	}
	return nil
}
