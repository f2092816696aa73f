package fork

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// Files are the files that say who this machine is. They lie in a directory
// of agentd's own and are bind-mounted over the places where programs look:
// writing in place needs no free block, so a full disk cannot stop a thaw.
type Files struct {
	Dir string // of the files themselves
	// Root is put before the places they are mounted over; "" in a guest.
	Root string
}

const bootIDFile = "proc/sys/kernel/random/boot_id"

var placed = map[string]string{ // name in Dir: place below Root
	"boot_id":    bootIDFile,
	"machine-id": "etc/machine-id",
	"hostname":   "etc/hostname",
}

// Install makes the files and mounts them. Places that do not exist are
// created, but for those in /proc.
func (f Files) Install() error {
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("make the identity files: %w", err)
	}
	if err := f.SetBootID(); err != nil {
		return fmt.Errorf("make the identity files: %w", err)
	}
	// Not empty: each file then has the page that later contents go into.
	if err := errors.Join(f.write("machine-id", "uninitialized\n"), f.write("hostname", "ratoon\n")); err != nil {
		return fmt.Errorf("make the identity files: %w", err)
	}
	for name, place := range placed {
		if err := mountOver(filepath.Join(f.Dir, name), filepath.Join("/", f.Root, place)); err != nil {
			return fmt.Errorf("mount %s over /%s: %w", name, place, err)
		}
	}
	return nil
}

func mountOver(file, place string) error {
	// A place that is a symbolic link would be followed to where it points,
	// perhaps out of Root.
	if st, err := os.Lstat(place); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		if err := os.Remove(place); err != nil {
			return err
		}
	}
	if f, err := os.OpenFile(place, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
		f.Close()
	} else if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return unix.Mount(file, place, "", unix.MS_BIND, "")
}

// SetBootID writes a new random boot id, a version 4 UUID as the kernel's.
func (f Files) SetBootID() error {
	var u [16]byte
	rand.Read(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return f.write("boot_id", fmt.Sprintf("%x-%x-%x-%x-%x\n", u[:4], u[4:6], u[6:8], u[8:10], u[10:]))
}

// SetNames sets the hostname and writes hostname and machine-id.
func (f Files) SetNames(id protocol.Identity) error {
	if id.Hostname != "" {
		if err := checkHostname(id.Hostname); err != nil {
			return err
		}
		if err := unix.Sethostname([]byte(id.Hostname)); err != nil {
			return fmt.Errorf("set hostname: %w", err)
		}
		if err := f.write("hostname", id.Hostname+"\n"); err != nil {
			return err
		}
	}
	if id.MachineID == "" {
		return nil
	}
	if len(id.MachineID) != 32 || strings.Trim(id.MachineID, "0123456789abcdef") != "" {
		return fmt.Errorf("machine-id %q is not 32 hex digits", id.MachineID)
	}
	return f.write("machine-id", id.MachineID+"\n")
}

func checkHostname(s string) error {
	if len(s) > 64 || strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		return fmt.Errorf("hostname %q is not 1-64 letters, digits, dots and dashes", s)
	}
	return nil
}

// write replaces the content in place: the page that the file has is reused.
func (f Files) write(name, content string) error {
	if f.Dir == "" {
		return errNoFiles
	}
	file, err := os.OpenFile(filepath.Join(f.Dir, name), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte(content), 0)
	if err == nil {
		err = file.Truncate(int64(len(content)))
	}
	return errors.Join(err, file.Close())
}
