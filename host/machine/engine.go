package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// Options of New.
type Options struct {
	Driver vmm.Driver
	// Dir is the run directory: checkpoints, bases and machines of this host
	// process. Cache holds the templates of all.
	Dir, Cache string
	// Resident: machines outlive this process, and the next one adopts them.
	// Only root's can.
	Resident bool
	// Cgroup is the directory of a cgroup (version 2) in which every machine
	// gets one; default: for root a directory below the mount, where that has
	// the controllers.
	Cgroup string
	// DiskLimit is how many bytes of disk checkpoints and bases may take; 0: no
	// limit.
	DiskLimit int64
	// Log is discarded by default.
	Log *slog.Logger
}

// Engine makes the machines of one run directory: of all kinds, for all its
// sandboxes.
type Engine struct {
	driver    vmm.Driver
	dir       string
	resident  bool
	boot      string // of the host
	log       *slog.Logger
	store     *checkpoint.Store
	templates *checkpoint.Store
	info      vmm.Info
	isolation Isolation
	cgroups   cgroups

	// Lock order: recovering, placing, mu.

	recovering sync.Mutex // guards recovered
	recovered  bool

	placing sync.Mutex // users are picked one after another

	mu    sync.Mutex // guards what follows
	bases map[protocol.BaseID]*base
	moves map[protocol.CheckpointID]*derivation
	rooms map[protocol.VMID]*room
}

// New opens the stores, asks the driver what it is, and looks for what earlier
// processes have left.
func New(ctx context.Context, o Options) (*Engine, error) {
	if o.Resident && os.Geteuid() != 0 {
		return nil, protocol.Errorf(protocol.CodeNotSupported, "machines outlive the host process of root only: run as root, or let them end with it")
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{driver: o.Driver, dir: o.Dir, resident: o.Resident, log: log, bases: map[protocol.BaseID]*base{},
		moves: map[protocol.CheckpointID]*derivation{}, rooms: map[protocol.VMID]*room{}}
	var err error
	if e.info, err = o.Driver.Info(ctx); err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the host's boot id: %w", err)
	}
	e.boot = strings.TrimSpace(string(boot))
	if err := os.MkdirAll(e.vms(), 0o711); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	if e.store, err = checkpoint.Open(o.Dir, checkpoint.Options{Log: log, Limit: o.DiskLimit}); err != nil {
		return nil, fmt.Errorf("open checkpoints of %s: %w", o.Dir, err)
	}
	if e.templates, err = checkpoint.Open(o.Cache, checkpoint.Options{Log: log}); err != nil {
		return nil, fmt.Errorf("open templates of %s: %w", o.Cache, err)
	}
	e.isolate(o.Cgroup)
	return e, e.readRooms()
}

// isolate finds out what holds machines apart, and says so once.
func (e *Engine) isolate(cgroup string) {
	e.isolation, e.cgroups = lookIsolation(cgroup)
	if e.cgroups.dir != "" {
		if err := e.cgroups.prepare(); err != nil {
			e.cgroups = cgroups{}
			e.isolation = isolationOf(e.cgroups, err)
		}
	}
	switch {
	case e.isolation.Missing == "":
		e.log.Info("isolation of machines", "isolation", e.isolation.String())
	case e.resident:
		e.log.Warn("isolation of machines", "isolation", e.isolation.String(), "missing", e.isolation.Missing)
	default:
		e.log.Debug("isolation of machines", "isolation", e.isolation.String(), "missing", e.isolation.Missing)
	}
}

// Isolation says what holds machines apart here.
func (e *Engine) Isolation() Isolation { return e.isolation }

// Close closes what is open. Resident machines are let go and live on; others
// must have been killed.
func (e *Engine) Close() error {
	var errs []error
	for _, v := range e.running() {
		if e.resident {
			errs = append(errs, v.machine.Detach())
			v.release()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, b := range e.bases {
		if b.Base != nil {
			errs = append(errs, b.Base.Close())
			b.release()
		}
		delete(e.bases, id)
	}
	return errors.Join(errs...)
}

func (e *Engine) running() (out []*VM) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.rooms {
		if r.vm != nil {
			out = append(out, r.vm)
		}
	}
	return out
}
