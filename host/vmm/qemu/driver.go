package qemu

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// machineName changes when the devices, their order or their options do:
// device state can then not be loaded any more.
const machineName = "q35-1"

// guestCmdline is what the guest's kernel needs to know of the machine. A
// panic resets, which ends the process; it is told from a reboot by pvpanic or
// the console.
const guestCmdline = "console=ttyS0 panic=-1 ratoon.carrier=serial"

// Options of a Driver. The zero value is usable.
type Options struct {
	// Program is QEMU's; default qemu-system-x86_64 from PATH.
	Program string
	// Accel is "tcg", the default, or "kvm".
	Accel string
	// CPU is QEMU's -cpu; the default depends on Accel.
	CPU string
	// TranslationMiB is the size of TCG's cache of translated code per
	// machine, default 32. It is most of what an idle machine costs.
	TranslationMiB int
	// StartTimeout bounds how long QEMU may take to be ready, default 30 s.
	StartTimeout time.Duration
	// CommandTimeout bounds one QMP command, default 30 s.
	CommandTimeout time.Duration
	// Log is discarded by default.
	Log *slog.Logger
}

// Driver starts QEMU processes.
type Driver struct {
	opt Options

	mu      sync.Mutex
	program string // found in PATH
	version version
}

var _ vmm.Driver = (*Driver)(nil)

// New makes a driver; it does no I/O.
func New(opt Options) *Driver {
	opt.Program = cmp.Or(opt.Program, "qemu-system-x86_64")
	opt.Accel = cmp.Or(opt.Accel, "tcg")
	if opt.CPU == "" {
		// TCG's max depends on QEMU's version only. Without la57 the guest
		// walks page tables of four levels, not five.
		opt.CPU = map[string]string{"tcg": "max,la57=off", "kvm": "host"}[opt.Accel]
	}
	opt.TranslationMiB = cmp.Or(opt.TranslationMiB, 32)
	opt.StartTimeout = cmp.Or(opt.StartTimeout, 30*time.Second)
	opt.CommandTimeout = cmp.Or(opt.CommandTimeout, 30*time.Second)
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{opt: opt}
}

// Info implements vmm.Driver.
func (d *Driver) Info(ctx context.Context) (vmm.Info, error) {
	_, v, err := d.find(ctx)
	if err != nil {
		return vmm.Info{}, err
	}
	return vmm.Info{
		Name: "qemu", Version: v.text, Accel: d.opt.Accel, CPUModel: d.opt.CPU,
		Machine: machineName, Cmdline: guestCmdline,
	}, nil
}

// find looks the program up and asks for its version, once.
func (d *Driver) find(ctx context.Context) (string, version, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program != "" {
		return d.program, d.version, nil
	}
	program, err := exec.LookPath(d.opt.Program)
	if err != nil {
		return "", version{}, fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeNotSupported, "QEMU is not installed (Debian: apt-get install qemu-system-x86)"), err)
	}
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", version{}, fmt.Errorf("ask %s for its version: %w", program, err)
	}
	v, err := parseVersion(out)
	if err != nil {
		return "", version{}, err
	}
	if !v.atLeast(7, 2) {
		return "", version{}, protocol.Errorf(protocol.CodeNotSupported, "QEMU %s is too old, 7.2 is needed", v.text)
	}
	d.program, d.version = program, v
	return program, v, nil
}

type version struct {
	text         string
	major, minor int
}

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// parseVersion reads "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)". The
// packager's part belongs to the version: it may change the device state.
func parseVersion(out []byte) (version, error) {
	line, _, _ := bytes.Cut(out, []byte("\n"))
	text, ok := strings.CutPrefix(string(line), "QEMU emulator version ")
	numbers := strings.SplitN(strings.SplitN(text, " ", 2)[0], ".", 3)
	if !ok || len(numbers) < 2 {
		return version{}, protocol.Errorf(protocol.CodeNotSupported, "%q is not a version of QEMU", line)
	}
	major, err1 := strconv.Atoi(numbers[0])
	minor, err2 := strconv.Atoi(numbers[1])
	if err1 != nil || err2 != nil {
		return version{}, protocol.Errorf(protocol.CodeNotSupported, "%q is not a version of QEMU", line)
	}
	return version{strings.TrimSpace(text), major, minor}, nil
}
