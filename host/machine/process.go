package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

// Users of machines: far from the ranges of people, services, systemd's
// dynamic users (61184-65519) and subordinate ids (524288-1878982656).
const (
	firstUID = 2_000_000_000
	countUID = 100_000_000
)

// freeUID picks a user for a machine: one that owns no process. Two ids of
// machines rarely fall on the same; if they do the next one is taken.
func freeUID(id protocol.VMID) (int, error) {
	used, err := usedUIDs()
	if err != nil {
		return 0, err
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	n := binary.BigEndian.Uint64(h.Sum(nil)) % countUID
	for ; used[int(firstUID+n)]; n = (n + 1) % countUID {
	}
	return int(firstUID + n), nil
}

// usedUIDs lists the users of all processes. The owner of /proc/PID does not
// tell: for some that is root.
func usedUIDs() (map[int]bool, error) {
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return nil, err
	}
	used := map[int]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended
		}
		_, line, _ := strings.Cut(string(b), "\nUid:")
		line, _, _ = strings.Cut(line, "\n")
		for id := range strings.FieldsSeq(line) { // real, effective, saved, file system
			if n, err := strconv.Atoi(id); err == nil {
				used[n] = true
			}
		}
	}
	return used, nil
}

// killAndWait ends a process that is not a child, found by pid and start
// time, so that a reused pid is never hit.
func killAndWait(ctx context.Context, pid int, start uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !memory.Alive(pid, start) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for memory.Alive(pid, start) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d: %w", pid, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}
