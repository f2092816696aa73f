package boot

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/guest/fork"
)

// settleKernel sets what the kernel does in trouble: a panic ends the machine
// at once, which the host sees, and Ctrl-Alt-Del is a signal to PID 1.
func settleKernel(m *machine) error {
	if err := os.WriteFile("/proc/sys/kernel/panic", []byte("-1"), 0); err != nil {
		m.log.Warn("a kernel panic will hang", "error", err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF); err != nil {
		m.log.Warn("Ctrl-Alt-Del will reboot", "error", err)
	}
	return nil
}

const modulesDir = "/modules"

// loadModules loads what /modules/order lists. One that cannot be loaded may
// not be needed; if it is, a later stage says what is missing.
func loadModules(m *machine) error {
	order, err := os.Open(filepath.Join(modulesDir, "order"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // everything is built in
	}
	if err != nil {
		return err
	}
	defer order.Close()
	lines := bufio.NewScanner(order)
	for lines.Scan() {
		name := strings.TrimSpace(lines.Text())
		if name == "" {
			continue
		}
		if err := loadModule(filepath.Join(modulesDir, filepath.Clean("/"+name))); err != nil {
			m.log.Error("module not loaded", "module", name, "error", err)
		}
	}
	return lines.Err()
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return ignore(unix.FinitModule(int(f.Fd()), "", 0), unix.EEXIST)
}

// seedRandom credits the hardware generator's bytes, so that no program of the
// guest has to wait for the kernel to gather its own.
func seedRandom(m *machine) error {
	seed := make(chan []byte, 1)
	go func() {
		if f, err := os.Open("/dev/hwrng"); err == nil {
			defer f.Close()
			b := make([]byte, 64)
			if n, err := f.Read(b); err == nil {
				seed <- b[:n]
				return
			}
		}
		seed <- nil
	}()
	select {
	case b := <-seed:
		if len(b) == 0 {
			m.log.Warn("no hardware random generator; the kernel gathers entropy by itself")
			return nil
		}
		if err := fork.Reseed(b); err != nil {
			return fmt.Errorf("credit %d bytes: %w", len(b), err)
		}
	case <-time.After(time.Second):
		m.log.Warn("the hardware random generator is silent; the kernel gathers entropy by itself")
	}
	return nil
}

func loopbackUp(*machine) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return fmt.Errorf("read the flags of lo: %w", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("set the flags of lo: %w", err)
	}
	return nil
}
