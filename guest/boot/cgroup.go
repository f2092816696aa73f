package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Cgroups of a guest, version 2.
const (
	cgroupDir = "/sys/fs/cgroup"
	agentDir  = cgroupDir + "/ratoon"
	// UserCgroup is what a freeze stops. Each exec has one below it.
	UserCgroup = cgroupDir + "/user"
)

const (
	// agentMemory is what users must leave for agentd and the kernel's own.
	agentMemory = 40 << 20
	// maxProcesses ends a fork bomb long before the kernel's tables are full.
	maxProcesses = 16384
)

func makeCgroups(m *machine) error {
	total, err := memTotal()
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(agentDir, 0o755), os.MkdirAll(UserCgroup, 0o755)); err != nil {
		return err
	}
	if err := write(agentDir+"/cgroup.procs", "0"); err != nil {
		return err
	}
	for _, controller := range []string{"memory", "pids", "cpu"} {
		for _, dir := range []string{cgroupDir, UserCgroup} {
			if err := write(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller); err != nil {
				m.log.Warn("no controller", "controller", controller, "error", err)
			}
		}
	}
	limit := strconv.FormatUint(max(total/2, total-min(total, agentMemory)), 10)
	for file, value := range map[string]string{
		UserCgroup + "/memory.max": limit,
		UserCgroup + "/pids.max":   strconv.Itoa(maxProcesses),
		agentDir + "/memory.min":   strconv.Itoa(agentMemory / 2),
		// The agent computes little, and users wait for it.
		agentDir + "/cpu.weight": "10000",
	} {
		if err := write(file, value); err != nil {
			m.log.Warn("limit not set", "file", file, "error", err)
		}
	}
	// Inherited by the worker; programs get their own back.
	if err := write("/proc/self/oom_score_adj", "-1000"); err != nil {
		return err
	}
	if _, err := os.Stat(UserCgroup + "/cgroup.freeze"); err != nil {
		return fmt.Errorf("the kernel cannot freeze cgroups: %w", err)
	}
	return nil
}

func write(path, value string) error { return os.WriteFile(path, []byte(value), 0) }
