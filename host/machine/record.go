package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Labels of the steps that write a record.
const (
	labelRecordWrite  = "machine.record.write"
	labelRecordRename = "machine.record.rename"
)

const nameRecord = "record"

// record is what a later host process must know of a machine, in a file in the
// machine's directory: all but the process before that exists, and the process
// before anybody hears of the machine. It is not fsynced: a machine does not
// survive the host either.
type record struct {
	ID protocol.VMID `json:"id"`
	// Boot names the boot of the host.
	Boot string `json:"boot"`
	// Template: the machine becomes a template, and ends with its host process.
	Template bool `json:"template,omitempty"`
	// UID is the user of its own; -1: the host's.
	UID    int    `json:"uid"`
	Cgroup string `json:"cgroup,omitempty"`
	// Base is mapped by the machine and must stay while that may live, under
	// the name Mapped.
	Base        protocol.BaseID `json:"base,omitempty"`
	Mapped      memory.Name     `json:"mapped,omitzero"`
	MemoryBytes int64           `json:"memory_bytes"`
	CPUs        int             `json:"cpus"`
	Process     vmm.Process     `json:"process,omitzero"`
}

// write replaces the record in a directory.
func (r record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write machine record: %w", err)
	}
	next := filepath.Join(dir, nameRecord+".new")
	if err = fault.Point(labelRecordWrite); err == nil {
		err = os.WriteFile(next, b, 0o600)
	}
	if err == nil {
		err = fault.Point(labelRecordRename)
	}
	if err == nil {
		err = os.Rename(next, filepath.Join(dir, nameRecord))
	}
	if err != nil {
		return diskError("write machine record", err)
	}
	return nil
}

// readRecord reads the record in a directory. Without one that can be read
// nothing of the machine has begun, or the host was booted since.
func readRecord(dir string) (r record, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, nameRecord))
	if err != nil || json.Unmarshal(b, &r) != nil {
		return record{}, false
	}
	return r, string(r.ID) == filepath.Base(dir)
}

func diskError(verb string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", protocol.Errorf(protocol.CodeDiskFull, "%s", verb), err)
	}
	return fmt.Errorf("%s: %w", verb, err)
}
