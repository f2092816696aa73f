package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// room is what one machine has on the host besides its process: a directory, a
// user, a cgroup, and the record that says so.
//
//	vm/ID/         the host's
//	vm/ID/record
//	vm/ID/run/     the machine's user's: its sockets
type room struct {
	e      *Engine
	id     protocol.VMID
	record record // zero: none could be read

	// Guarded by the engine's mu.
	ours bool // made or adopted by this process
	vm   *VM  // nil until it runs
}

func (r *room) dir() string { return filepath.Join(r.e.vms(), string(r.id)) }

func (r *room) run() string { return filepath.Join(r.dir(), "run") }

func (e *Engine) vms() string { return filepath.Join(e.dir, "vm") }

// readRooms finds what earlier processes have left.
func (e *Engine) readRooms() error {
	names, err := os.ReadDir(e.vms())
	if err != nil {
		return fmt.Errorf("list machines: %w", err)
	}
	for _, n := range names {
		r := &room{e: e, id: protocol.VMID(n.Name())}
		r.record, _ = readRecord(r.dir())
		e.rooms[r.id] = r
	}
	return nil
}

// makeRoom makes the room of a machine, with a user of its own where the host
// may choose one. rec is completed.
func (e *Engine) makeRoom(rec record) (*room, error) {
	r, err := e.takeRoom(rec)
	if err != nil {
		return nil, fmt.Errorf("make machine directory: %w", err)
	}
	if err := r.furnish(); err != nil {
		return nil, errors.Join(fmt.Errorf("make machine directory: %w", err), r.remove(context.Background()))
	}
	return r, nil
}

// takeRoom makes the directory and picks the user.
func (e *Engine) takeRoom(rec record) (*room, error) {
	e.placing.Lock()
	defer e.placing.Unlock()
	rec.Boot, rec.UID = e.boot, -1
	if e.isolation.Users {
		e.mu.Lock()
		taken := map[int]bool{}
		for _, other := range e.rooms {
			taken[other.record.UID] = true
		}
		e.mu.Unlock()
		var err error
		if rec.UID, err = freeUID(rec.ID, taken); err != nil {
			return nil, err
		}
	}
	if e.cgroups.dir != "" {
		rec.Cgroup = e.cgroups.path(rec.ID)
	}
	r := &room{e: e, id: rec.ID, record: rec, ours: true}
	if err := os.Mkdir(r.dir(), 0o711); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rooms[rec.ID] = r
	return r, nil
}

// furnish makes what the record names, after the record.
func (r *room) furnish() error {
	rec := r.record
	if err := rec.write(r.dir()); err != nil {
		return err
	}
	if rec.Cgroup != "" {
		if err := r.e.cgroups.make(rec.Cgroup, rec.MemoryBytes, rec.CPUs); err != nil {
			return err
		}
	}
	if err := os.Mkdir(r.run(), 0o700); err != nil {
		return err
	}
	if rec.UID >= 0 {
		return os.Chown(r.run(), rec.UID, rec.UID)
	}
	return nil
}

// complete adds the process to the record.
func (r *room) complete(p vmm.Process, mapped memory.Name) error {
	r.e.mu.Lock()
	r.record.Process, r.record.Mapped = p, mapped
	rec := r.record
	r.e.mu.Unlock()
	return rec.write(r.dir())
}

// spec describes the room's machine to the driver.
func (r *room) spec(k Kind) vmm.Spec {
	return vmm.Spec{Dir: r.run(), UID: r.record.UID, GID: r.record.UID, MemoryBytes: k.MemoryBytes, CPUs: k.CPUs,
		Kernel: k.Boot.Kernel, Initrd: k.Boot.Initrd, Rootfs: k.Boot.Rootfs, Cmdline: k.Boot.Cmdline,
		Resident: r.e.resident && !r.record.Template, Cgroup: r.record.Cgroup}
}

// clear ends what an earlier process has left in the room and removes it. It
// may be repeated.
func (r *room) clear(ctx context.Context) error {
	rec := r.record
	if rec.Boot == r.e.boot { // else its pids and users are others'
		var err error
		if rec.Cgroup != "" {
			err = killCgroup(rec.Cgroup)
		}
		if err == nil && rec.Process.PID > 0 {
			err = killMachine(ctx, rec.Process, rec.UID)
		}
		if err == nil {
			err = killUser(ctx, rec.UID)
		}
		if err != nil {
			return fmt.Errorf("end machine %s: %w", r.id, err)
		}
	}
	return r.remove(ctx)
}

// remove removes the room of a machine that has ended.
func (r *room) remove(ctx context.Context) error {
	if r.record.Cgroup != "" {
		if err := removeCgroup(ctx, r.record.Cgroup); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(r.dir()); err != nil {
		return fmt.Errorf("remove machine directory: %w", err)
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if r.e.rooms[r.id] == r {
		delete(r.e.rooms, r.id)
	}
	return nil
}
