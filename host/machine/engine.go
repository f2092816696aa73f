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
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// Options of New.
type Options struct {
	Driver vmm.Driver
	// Dir is the run directory: checkpoints, bases and machines of this host
	// process. Cache holds the templates of all.
	Dir, Cache string
	// Log is discarded by default.
	Log *slog.Logger
}

// Engine makes the machines of one run directory: of all kinds, for all its
// sandboxes.
type Engine struct {
	driver    vmm.Driver
	dir       string
	log       *slog.Logger
	store     *checkpoint.Store
	templates *checkpoint.Store
	info      vmm.Info

	recovering sync.Mutex // guards recovered; before all others
	recovered  bool

	mu    sync.Mutex // guards what follows
	bases map[protocol.BaseID]*base
	moves map[protocol.CheckpointID]*derivation
}

// New opens the stores and asks the driver what it is.
func New(ctx context.Context, o Options) (*Engine, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{driver: o.Driver, dir: o.Dir, log: log, bases: map[protocol.BaseID]*base{}, moves: map[protocol.CheckpointID]*derivation{}}
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
