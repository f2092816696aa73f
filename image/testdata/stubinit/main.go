// Command stubinit is the /init of the boot test: it loads the modules, mounts
// the root read-only, says so on the console and powers off.
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Println("stub failed:", err)
	}
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	console, err := os.OpenFile("/dev/console", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	os.Stdout = console
	for _, m := range []struct{ fs, dir string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for path := range strings.FieldsSeq(string(order)) {
		if err := load("/modules/" + path); err != nil {
			return fmt.Errorf("load %s: %w", path, err)
		}
	}
	if err := unix.Mount("/dev/vda", "/mnt", "ext4", unix.MS_RDONLY, "noload"); err != nil {
		return fmt.Errorf("mount /dev/vda: %w", err)
	}
	text, err := os.ReadFile("/mnt/greeting")
	if err != nil {
		return err
	}
	up, err := os.ReadFile("/proc/uptime")
	fmt.Printf("stub ok: %s at %s", text, up)
	return err
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}
