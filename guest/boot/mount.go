package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/guest/fork"
	"github.com/ratoon-project/ratoon/protocol"
)

// mount is one mount of the boot; its target is made if it is missing.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", m.target, err)
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
	}
	return nil
}

func mountAll(list ...mount) error {
	for _, m := range list {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func mountKernel(*machine) error {
	return mountAll(
		mount{"proc", "/proc", "proc", plain, ""},
		mount{"sysfs", "/sys", "sysfs", plain, ""},
		mount{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		// Small, and apart from the tmpfs that users fill: agentd's socket and
		// identity files are here.
		mount{"run", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755,size=8m,nr_inodes=4096"},
	)
}

// Places in the initramfs.
const (
	lowerDir = "/lower"
	upperFS  = "/rw"
	newRoot  = "/newroot"
)

// deviceWait is how long the root's device may take to appear.
const deviceWait = 10 * time.Second

// mountRoot makes the root: the image below, and above it the one tmpfs.
func mountRoot(m *machine) error {
	if err := awaitDevice(m.cmdline.root); err != nil {
		return err
	}
	options, err := upperOptions()
	if err != nil {
		return err
	}
	upper, work := upperFS+"/upper", upperFS+"/work"
	err = mountAll(
		mount{m.cmdline.root, lowerDir, "ext4", unix.MS_RDONLY, "noload"},
		mount{"rw", upperFS, "tmpfs", 0, options},
	)
	if err != nil {
		return err
	}
	for dir, mode := range map[string]os.FileMode{
		upper: 0o755, work: 0o755, upperFS + "/workspace": 0o777,
		upperFS + "/shm": 0o777 | os.ModeSticky, upperFS + "/tmp": 0o777 | os.ModeSticky,
	} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, mode)); err != nil {
			return err
		}
	}
	overlay := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lowerDir, upper, work)
	return mountAll(
		mount{"overlay", newRoot, "overlay", 0, overlay},
		mount{upperFS + "/workspace", newRoot + protocol.GuestWorkspace, "", unix.MS_BIND, ""},
		mount{upperFS + "/tmp", newRoot + "/tmp", "", unix.MS_BIND, ""},
	)
}

func awaitDevice(path string) error {
	step := time.Millisecond
	for began := time.Now(); ; {
		st, err := os.Stat(path)
		if err == nil && st.Mode()&fs.ModeDevice != 0 {
			return nil
		}
		if time.Since(began) > deviceWait {
			return fmt.Errorf("%s did not appear within %v; is its driver loaded?", path, deviceWait)
		}
		time.Sleep(step)
		step = min(2*step, 50*time.Millisecond)
	}
}

// upperOptions bounds the tmpfs to half of the memory. An inode takes about a
// kilobyte of kernel memory, of which they may use another eighth.
func upperOptions() (string, error) {
	total, err := memTotal()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", total/2, total/8/1024), nil
}

// memTotal is the machine's memory in bytes.
func memTotal() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the size of the memory: %w", err)
	}
	return info.Totalram * uint64(info.Unit), nil
}

// agentPath is where guest programs find agentd.
const agentPath = "/usr/local/bin/agentd"

// switchRoot leaves the initramfs.
func switchRoot(*machine) error {
	if err := bindAgent(newRoot + agentPath); err != nil {
		return fmt.Errorf("mount agentd: %w", err)
	}
	if err := os.RemoveAll(modulesDir); err != nil {
		return fmt.Errorf("free the initramfs: %w", err)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run"} {
		if err := (mount{dir, newRoot + dir, "", unix.MS_MOVE, ""}).do(); err != nil {
			return err
		}
	}
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	// The tmpfs is reached from here for the last time.
	shm := mount{upperFS + "/shm", newRoot + "/dev/shm", "", unix.MS_BIND, ""}
	if err := shm.do(); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), unix.Chdir("/")); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	return mountAll(
		mount{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666,gid=5"},
		mount{"cgroup2", cgroupDir, "cgroup2", plain, ""},
	)
}

// bindAgent mounts /init, which stays in the initramfs, over target: a copy
// would take its size in memory once more.
func bindAgent(target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o755)
	if err != nil {
		return err
	}
	f.Close()
	if err := unix.Mount("/init", target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID, "")
}

// IdentityFiles are this guest's.
var IdentityFiles = fork.Files{Dir: "/run/ratoon/identity"}

// populate makes what programs expect of any machine.
func populate(m *machine) error {
	for name, to := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2",
	} {
		if err := ignore(os.Symlink(to, name), os.ErrExist); err != nil {
			return err
		}
	}
	const lock = "/run/lock"
	if err := errors.Join(os.MkdirAll("/etc", 0o755), os.MkdirAll(lock, 0o755), os.Chmod(lock, 0o777|os.ModeSticky)); err != nil {
		return err
	}
	if _, err := os.Stat("/etc/hosts"); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost\n::1 localhost\n"), 0o644); err != nil {
			m.log.Warn("no /etc/hosts", "error", err)
		}
	}
	return nil
}

// makeIdentity gives the machine a name until its first thaw brings the right
// one.
func makeIdentity(*machine) error {
	if err := unix.Sethostname([]byte("ratoon")); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	return IdentityFiles.Install()
}
