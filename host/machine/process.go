package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// Users of machines: far from the ranges of people, services, systemd's
// dynamic users (61184-65519) and subordinate ids (524288-1878982656).
const (
	firstUID = 2_000_000_000
	countUID = 100_000_000
)

// freeUID picks a user for a machine: one that owns no process and is not
// among the taken. Two ids of machines rarely fall on the same; if they do the
// next one is picked.
func freeUID(id protocol.VMID, taken map[int]bool) (int, error) {
	used, err := usedUIDs()
	if err != nil {
		return 0, err
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	n := binary.BigEndian.Uint64(h.Sum(nil)) % countUID
	for ; used[int(firstUID+n)] != nil || taken[int(firstUID+n)]; n = (n + 1) % countUID {
	}
	return int(firstUID + n), nil
}

func isMachineUID(uid int) bool { return uid >= firstUID && uid < firstUID+countUID }

// usedUIDs lists the users of all processes, with these.
func usedUIDs() (map[int][]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	used := map[int][]int{}
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		users, err := memory.UIDs(pid)
		if err != nil {
			continue // it ended
		}
		for _, uid := range users {
			if !slices.Contains(used[uid], pid) {
				used[uid] = append(used[uid], pid)
			}
		}
	}
	return used, nil
}

// killUser ends all processes of a machine's own user: those that an earlier
// host process had no time to note.
func killUser(ctx context.Context, uid int) error {
	if os.Geteuid() != 0 || !isMachineUID(uid) {
		return nil
	}
	used, err := usedUIDs()
	if err != nil {
		return err
	}
	for _, pid := range used[uid] {
		err := killIf(ctx, pid, func() bool {
			users, err := memory.UIDs(pid)
			return err == nil && slices.Contains(users, uid)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// killMachine ends a machine's process that is not a child. One that has its
// pid but another start time, program or user is left alone.
func killMachine(ctx context.Context, p vmm.Process, uid int) error {
	if uid < 0 {
		uid = os.Geteuid()
	}
	return killIf(ctx, p.PID, func() bool {
		if !memory.Alive(p.PID, p.StartTime) {
			return false
		}
		program, err := memory.Program(p.PID)
		if err != nil || program != p.Program {
			return false
		}
		users, err := memory.UIDs(p.PID)
		return err == nil && !slices.ContainsFunc(users, func(u int) bool { return u != uid })
	})
}

// killIf kills a process and waits for its end, if it is the one that is
// meant: that is asked while its pid cannot become another's.
func killIf(ctx context.Context, pid int, meant func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !meant() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 10)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case ctx.Err() != nil:
			return fmt.Errorf("wait for process %d: %w", pid, context.Cause(ctx))
		}
	}
}
