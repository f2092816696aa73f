package boot

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Options says what to boot.
type Options struct {
	Release string // logged
}

// stage is one step of a boot, in order.
type stage struct {
	name string
	run  func(*machine) error
}

var stages = []stage{
	{"mount kernel file systems", mountKernel},
	{"open the console", openConsole},
	{"read the command line", readCmdline},
	{"settle the kernel", settleKernel},
	{"relax timers", relaxTimers},
	{"load modules", loadModules},
	{"mount the root", mountRoot},
	{"switch to the root", switchRoot},
	{"populate the root", populate},
	{"make cgroups", makeCgroups},
	{"seed the random generator", seedRandom},
	{"bring up loopback", loopbackUp},
	{"make the machine's identity", makeIdentity},
}

// machine is what the stages learn.
type machine struct {
	log     *slog.Logger
	cmdline cmdline
	level   *slog.LevelVar
}

// Main boots the machine and supervises the worker for ever.
func Main(opt Options) {
	began := time.Now()
	reaper := newReaper()
	signals := TakeSignals()
	level := new(slog.LevelVar)
	m := &machine{level: level, log: NewLog(os.Stderr, level)}
	if signals != nil {
		m.log.Error("take signals", "error", signals)
	}
	for _, s := range stages {
		if err := runStage(s, m); err != nil {
			powerOff(s.name, err)
		}
	}
	m.log.Info("booted", "release", opt.Release, "took", time.Since(began).Round(time.Millisecond))
	sup := &supervisor{log: m.log, reaper: reaper, args: m.cmdline.workerArgs()}
	for {
		superviseOnce(sup)
		time.Sleep(time.Second) // after a panic only
	}
}

func runStage(s stage, m *machine) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return s.run(m)
}

func superviseOnce(s *supervisor) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("supervision panicked and begins again", "panic", p)
		}
	}()
	s.run()
}

// powerOff says why and ends the machine.
func powerOff(stage string, err error) {
	line := fmt.Sprintf("ratoon: boot: %s: %v\n", stage, err)
	os.Stderr.WriteString(line)
	// Before the console stage standard error may be nothing.
	if k, kerr := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0); kerr == nil {
		k.WriteString(line)
	}
	unix.Sync()
	for {
		err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		fmt.Fprintf(os.Stderr, "ratoon: power off: %v\n", err)
		time.Sleep(time.Second)
	}
}

// ignore drops errors of the given kinds.
func ignore(err error, kinds ...error) error {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return nil
		}
	}
	return err
}
