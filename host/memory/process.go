package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// StartTime is the time since boot at which a process started, in clock ticks
// (field 22 of /proc/PID/stat). Together with the pid it names a process for
// as long as the host is up; a bare pid does not.
func StartTime(pid int) (uint64, error) {
	_, start, err := readStat(pid)
	return start, err
}

// Alive tells whether the process of that pid and start time runs. A process
// that ended and was not yet reaped does not.
func Alive(pid int, startTime uint64) bool {
	state, start, err := readStat(pid)
	return err == nil && start == startTime && state != 'Z' && state != 'X'
}

// Program is the path of the file that a process runs, also when the file was
// replaced since.
func Program(pid int) (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return "", fmt.Errorf("read program of process %d: %w", pid, err)
	}
	return strings.TrimSuffix(path, " (deleted)"), nil
}

// UIDs are the real, effective, saved and file-system user of a process. The
// owner of /proc/PID does not tell: for some that is root.
func UIDs(pid int) ([]int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, fmt.Errorf("read users of process %d: %w", pid, err)
	}
	_, line, _ := strings.Cut(string(b), "\nUid:")
	line, _, _ = strings.Cut(line, "\n")
	var out []int
	for id := range strings.FieldsSeq(line) {
		n, err := strconv.Atoi(id)
		if err != nil {
			return nil, fmt.Errorf("read users of process %d: %w", pid, err)
		}
		out = append(out, n)
	}
	if len(out) != 4 {
		return nil, fmt.Errorf("read users of process %d: %d of 4", pid, len(out))
	}
	return out, nil
}

func readStat(pid int) (state byte, start uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, 0, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read state of process %d: %w", pid, err)
	}
	// The name, field 2, is in parentheses and may hold any byte.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("read state of process %d: %d fields after the name", pid, len(fields))
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("read start time of process %d: %w", pid, err)
	}
	return fields[0][0], start, nil
}
