package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

const (
	// cgroupMount is where version 2 is mounted, alone.
	cgroupMount = "/sys/fs/cgroup"
	// cgroupName is the cgroup of all machines of this host's root: not below
	// the host process's own, so that a service manager that ends that one
	// leaves resident machines alone.
	cgroupName = "ratoon"
	// memoryHeadroom is what a machine may take besides its RAM: QEMU itself
	// some 30 MB, TCG's translations 32 MB, stacks, page tables, and pages of
	// the disk, which the kernel takes back first.
	memoryHeadroom = 256 << 20
	// maxThreads bounds QEMU's threads besides those of the processors. Its
	// pool for disk I/O has up to 64.
	maxThreads = 128
)

// cgroups is the cgroup in which each machine has one.
type cgroups struct {
	dir          string // empty: none
	memory, pids bool   // limited in it
}

// lookCgroups tells what New would use, without changing anything: a directory
// given by the user, or one below the mount for root. The error says what is
// missing.
func lookCgroups(dir string) (cgroups, error) {
	at := dir
	if dir == "" {
		if os.Geteuid() != 0 {
			return cgroups{}, errors.New("an ordinary user's machines have no cgroups unless one is delegated and named")
		}
		dir, at = filepath.Join(cgroupMount, cgroupName), cgroupMount
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return cgroups{}, fmt.Errorf("no cgroup version 2 at %s (boot with systemd.unified_cgroup_hierarchy=1)", at)
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		return cgroups{}, fmt.Errorf("%s cannot be written: %w", at, err)
	}
	c := cgroups{dir: dir}
	b, err := os.ReadFile(filepath.Join(at, "cgroup.controllers"))
	if err != nil {
		return cgroups{}, fmt.Errorf("read controllers of %s: %w", at, err)
	}
	have := strings.Fields(string(b))
	c.memory, c.pids = slices.Contains(have, "memory"), slices.Contains(have, "pids")
	if at != dir && !(c.memory && c.pids) {
		return cgroups{}, fmt.Errorf("%s has no controllers for memory and processes (it has %q)", at, strings.Join(have, " "))
	}
	return c, nil
}

// prepare makes the directory and hands the controllers down.
func (c *cgroups) prepare() error {
	parent := filepath.Dir(c.dir)
	if parent == cgroupMount {
		if err := c.enable(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return c.enable(c.dir)
}

func (c *cgroups) enable(dir string) error {
	for name, wanted := range map[string]bool{"memory": c.memory, "pids": c.pids} {
		if !wanted {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("enable the controller %s: %w", name, err)
		}
	}
	return nil
}

func (c *cgroups) path(id protocol.VMID) string { return filepath.Join(c.dir, string(id)) }

// make makes a machine's cgroup with its limits.
func (c *cgroups) make(dir string, ram int64, cpus int) error {
	err := fault.Point("machine.cgroup.make")
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	var limits []struct{ file, value string }
	if c.memory {
		limits = append(limits, struct{ file, value string }{"memory.max", strconv.FormatInt(ram+memoryHeadroom, 10)},
			struct{ file, value string }{"memory.oom.group", "1"})
	}
	if c.pids {
		limits = append(limits, struct{ file, value string }{"pids.max", strconv.Itoa(maxThreads + cpus)})
	}
	for _, l := range limits {
		if err := os.WriteFile(filepath.Join(dir, l.file), []byte(l.value), 0); err != nil {
			return fmt.Errorf("limit cgroup: %w", err)
		}
	}
	return nil
}

// killCgroup kills all in a cgroup that is left.
func killCgroup(dir string) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // or before Linux 5.14: the rest finds them
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// cgroupWait bounds the wait for a cgroup to be empty after its processes'
// ends.
const cgroupWait = 10 * time.Second

// removeCgroup removes a cgroup whose processes have ended or are about to.
func removeCgroup(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, cgroupWait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
}
