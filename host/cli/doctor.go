package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/image"
)

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warning, missing
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

const (
	statusOK      = "ok"
	statusWarning = "warning"
	statusMissing = "missing"
)

func newDoctor(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this host has and lacks, with remedies",
		Long:  "Doctor checks what Ratoon needs of this host. It fails when something is missing\nwithout which nothing runs; warnings say what works less well.",
		Args:  arguments(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.doctor(cmd.Context()) },
	}
	outputFlag(cmd, g)
	return cmd
}

func (g *global) doctor(ctx context.Context) error {
	found := []finding{checkQEMU(ctx), checkAgentd(), g.checkState(), checkBuilder(), checkKVM(), checkYama(), checkOvercommit(), checkSwap(), checkCgroup(), checkUser()}
	err := g.print(found, func(w io.Writer) {
		for _, f := range found {
			fmt.Fprintf(w, "%s\t%s\t%s\n", f.Status, f.Check, line(f.Found))
			if f.Remedy != "" {
				fmt.Fprintf(w, "\t\tremedy: %s\n", f.Remedy)
			}
		}
	})
	for _, f := range found {
		if f.Status == statusMissing {
			return errors.Join(err, fmt.Errorf("%s is missing", f.Check))
		}
	}
	return err
}

func checkQEMU(ctx context.Context) finding {
	info, err := qemu.New(qemu.Options{}).Info(ctx)
	if err != nil {
		return finding{"QEMU", statusMissing, err.Error(), "apt-get install qemu-system-x86"}
	}
	return finding{"QEMU", statusOK, fmt.Sprintf("%s %s, %s, CPU %s", info.Name, info.Version, info.Accel, info.CPUModel), ""}
}

func checkAgentd() finding {
	path, err := image.FindAgentd()
	if err != nil {
		return finding{"guest agent", statusMissing, err.Error(), "make build, or set " + image.EnvAgentd}
	}
	return finding{"guest agent", statusOK, path, ""}
}

func (g *global) checkState() finding {
	const want = 4 << 30
	dir, err := g.state()
	if err != nil {
		return finding{"state directory", statusMissing, err.Error(), "choose another one with --state-dir or " + state.Env}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir.Path(), &fs); err != nil {
		return finding{"state directory", statusMissing, err.Error(), "choose another one with --state-dir"}
	}
	free := int64(fs.Bavail) * fs.Bsize
	f := finding{"state directory", statusOK, fmt.Sprintf("%s, %s free, reflinks: %s", dir.Path(), size(free), reflinks(dir.Path())), ""}
	if free < want {
		f.Status, f.Remedy = statusWarning, "the images and a few checkpoints want about 4 GiB"
	}
	return f
}

// reflinks tries to clone a file, as a new base is made from an old one.
func reflinks(dir string) string {
	a, err := os.CreateTemp(dir, "doctor")
	if err != nil {
		return err.Error()
	}
	defer os.Remove(a.Name())
	defer a.Close()
	b, err := os.CreateTemp(dir, "doctor")
	if err != nil {
		return err.Error()
	}
	defer os.Remove(b.Name())
	defer b.Close()
	if unix.IoctlFileClone(int(b.Fd()), int(a.Fd())) != nil {
		return "no (new bases are copied)"
	}
	return "yes"
}

func checkBuilder() finding {
	path, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return finding{"image builder", statusWarning, "mmdebstrap is not installed", "apt-get install mmdebstrap; only needed to build the guest image the first time"}
	}
	return finding{"image builder", statusOK, path, ""}
}

func checkKVM() finding {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return finding{"KVM", statusWarning, err.Error(), "none needed: this release emulates (TCG), which every machine can"}
	}
	f.Close()
	return finding{"KVM", statusOK, "/dev/kvm opens; this release emulates (TCG) all the same", ""}
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func checkYama() finding {
	v := read("/proc/sys/kernel/yama/ptrace_scope")
	if v == "2" || v == "3" {
		return finding{"ptrace", statusMissing, "kernel.yama.ptrace_scope=" + v + ": the memory of machines cannot be read", "sysctl kernel.yama.ptrace_scope=1"}
	}
	if v == "" {
		v = "no yama"
	}
	return finding{"ptrace", statusOK, v, ""}
}

func checkOvercommit() finding {
	v := read("/proc/sys/vm/overcommit_memory")
	if v == "2" {
		return finding{"overcommit", statusWarning, "vm.overcommit_memory=2: every machine is charged its whole RAM", "sysctl vm.overcommit_memory=0"}
	}
	return finding{"overcommit", statusOK, "vm.overcommit_memory=" + v, ""}
}

func checkSwap() finding {
	n := strings.Count(read("/proc/swaps"), "\n")
	if n == 0 {
		return finding{"swap", statusOK, "none", ""}
	}
	return finding{"swap", statusWarning, fmt.Sprintf("%d areas: guest memory, also secrets in it, may be written there", n), "swapoff -a, or encrypt the swap"}
}

func checkCgroup() finding {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		return finding{"cgroup v2", statusWarning, "not mounted at /sys/fs/cgroup: machines are not limited by cgroups", "boot with systemd.unified_cgroup_hierarchy=1"}
	}
	return finding{"cgroup v2", statusOK, "mounted", ""}
}

func checkUser() finding {
	if os.Geteuid() == 0 {
		return finding{"user", statusOK, "root: every machine runs as a user of its own", ""}
	}
	return finding{"user", statusOK, "an ordinary user: machines run as this user, sandboxed, in one trust domain", ""}
}
