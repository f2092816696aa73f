package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// procField is the value of the first line "name: value" of a file of /proc.
func procField(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kilobytes is a value such as "123 kB", in bytes.
func kilobytes(value string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
	return n << 10, err
}

func meminfo(name string) (int64, error) {
	n, err := kilobytes(procField("/proc/meminfo", name))
	if err != nil {
		return 0, fmt.Errorf("read %s of /proc/meminfo: %w", name, err)
	}
	return n, nil
}

// pss is the proportional share of host memory of a process.
func pss(pid int) (int64, error) {
	n, err := kilobytes(procField(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss"))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return n, nil
}

// privateRAM is the guest memory that a VMM does not share with its base: the
// anonymous pages in its mappings of it.
func privateRAM(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var total int64
	found, inside := false, false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.Contains(key, " ") { // addresses, permissions and so on
			inside = strings.Contains(lines.Text(), "/memfd:ba-") || strings.Contains(lines.Text(), "/bases/ba-")
			found = found || inside
			continue
		}
		if inside && key == "Anonymous" {
			n, err := kilobytes(value)
			if err != nil {
				return 0, err
			}
			total += n
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("process %d maps no base", pid)
	}
	return total, nil
}
