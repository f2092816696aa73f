package boot

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
)

// Carriers of the link to the host.
const (
	CarrierSerial = "serial"
	CarrierVsock  = "vsock"
)

// cmdline is what the kernel's command line says to agentd.
type cmdline struct {
	root    string
	carrier string
	debug   bool
}

func parseCmdline(s string) (cmdline, error) {
	c := cmdline{root: "/dev/vda", carrier: CarrierSerial}
	for word := range strings.FieldsSeq(s) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "ratoon.root":
			c.root = value
		case "ratoon.carrier":
			c.carrier = value
		case "ratoon.debug":
			c.debug = true
		}
	}
	if c.carrier != CarrierSerial && c.carrier != CarrierVsock {
		return c, fmt.Errorf("ratoon.carrier=%s: want %s or %s", c.carrier, CarrierSerial, CarrierVsock)
	}
	if !strings.HasPrefix(c.root, "/dev/") {
		return c, fmt.Errorf("ratoon.root=%s: want a block device under /dev", c.root)
	}
	return c, nil
}

func (c cmdline) workerArgs() []string {
	args := []string{"agentd", "worker", "--carrier", c.carrier}
	if c.debug {
		args = append(args, "--debug")
	}
	return args
}

func readCmdline(m *machine) error {
	b, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	m.cmdline, err = parseCmdline(string(b))
	if m.cmdline.debug {
		m.level.Set(slog.LevelDebug)
	}
	return err
}
