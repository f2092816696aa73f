package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// Boot names the files a guest boots from, with their digests.
type Boot struct {
	Kernel, KernelDigest string
	Initrd, InitrdDigest string
	Rootfs, RootfsDigest string
	Cmdline              string
}

// Options of New.
type Options struct {
	Driver vmm.Driver
	Boot   Boot
	// Dir is the run directory: checkpoints, bases and machines of this host
	// process. Cache holds the templates of all.
	Dir, Cache  string
	MemoryBytes int64
	CPUs        int
	Log         *slog.Logger
}

// Engine makes machines.
type Engine struct {
	driver    vmm.Driver
	boot      Boot
	dir       string
	memory    int64
	cpus      int
	log       *slog.Logger
	store     *checkpoint.Store
	templates *checkpoint.Store
	info      vmm.Info

	mu    sync.Mutex // guards what follows
	bases map[protocol.BaseID]*base
	moves map[protocol.CheckpointID]*derivation
}

// base is an open base and how many machines map it.
type base struct {
	*memory.Base
	ready   chan struct{} // closed when Base or err is set
	err     error
	users   int
	release func()
}

// New opens the stores and asks the driver what it is.
func New(ctx context.Context, o Options) (*Engine, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{driver: o.Driver, boot: o.Boot, dir: o.Dir, memory: o.MemoryBytes, cpus: max(1, o.CPUs), log: log,
		bases: map[protocol.BaseID]*base{}, moves: map[protocol.CheckpointID]*derivation{}}
	var err error
	if e.info, err = o.Driver.Info(ctx); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "vm"), 0o711); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	if e.store, err = checkpoint.Open(o.Dir, checkpoint.Options{Log: log}); err != nil {
		return nil, fmt.Errorf("open checkpoints of %s: %w", o.Dir, err)
	}
	if e.templates, err = checkpoint.Open(o.Cache, checkpoint.Options{Log: log}); err != nil {
		return nil, fmt.Errorf("open templates of %s: %w", o.Cache, err)
	}
	return e, nil
}

// platform is what a checkpoint must fit.
func (e *Engine) platform() checkpoint.Platform {
	return checkpoint.Platform{VMM: e.vmmOf(), Machine: checkpoint.Machine{MemoryBytes: e.memory, CPUs: e.cpus},
		KernelDigest: e.boot.KernelDigest, ImageDigest: e.boot.RootfsDigest, ProtocolVersion: protocol.Version}
}

func (e *Engine) vmmOf() checkpoint.VMM {
	return checkpoint.VMM{Name: e.info.Name, Version: e.info.Version, CPUModel: e.info.CPUModel + " " + e.info.Machine, Accel: e.info.Accel}
}

// spec describes a machine in its own directory.
func (e *Engine) spec(dir string, uid int) vmm.Spec {
	return vmm.Spec{Dir: dir, UID: uid, GID: uid, MemoryBytes: e.memory, CPUs: e.cpus, Kernel: e.boot.Kernel, Initrd: e.boot.Initrd,
		Rootfs: e.boot.Rootfs, Cmdline: e.boot.Cmdline}
}

// openBase opens a base once for all machines that map it.
func (e *Engine) openBase(id protocol.BaseID) (*base, error) {
	e.mu.Lock()
	b := e.bases[id]
	if b != nil {
		b.users++
		e.mu.Unlock()
		<-b.ready
		if b.err != nil {
			e.closeBase(id, b)
			return nil, b.err
		}
		return b, nil
	}
	b = &base{ready: make(chan struct{}), users: 1}
	e.bases[id] = b
	e.mu.Unlock()
	b.err = e.fillBase(id, b)
	close(b.ready)
	if b.err != nil {
		e.closeBase(id, b)
		return nil, b.err
	}
	return b, nil
}

func (e *Engine) fillBase(id protocol.BaseID, b *base) error {
	release, err := e.store.HoldBase(id)
	if err != nil {
		return err
	}
	files, err := e.store.BaseFiles(id)
	if err == nil {
		b.Base, err = memory.OpenBase(id, files.RAM)
	}
	if err != nil {
		release()
		return err
	}
	b.release = release
	return nil
}

// closeBase gives one use back.
func (e *Engine) closeBase(id protocol.BaseID, b *base) {
	e.mu.Lock()
	b.users--
	last := b.users == 0
	if last && e.bases[id] == b {
		delete(e.bases, id)
	}
	e.mu.Unlock()
	if !last || b.Base == nil {
		return
	}
	if err := b.Base.Close(); err != nil {
		e.log.Error("close base", "base", id, "error", err)
	}
	b.release()
}

// Close closes what is open. Machines must have been killed.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for id, b := range e.bases {
		if b.Base != nil {
			errs = append(errs, b.Base.Close())
			b.release()
		}
		delete(e.bases, id)
	}
	return errors.Join(errs...)
}

var (
	_ sandbox.Machines    = (*Engine)(nil)
	_ sandbox.Checkpoints = (*Store)(nil)
	_ sandbox.VM          = (*VM)(nil)
)
