package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/spool"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// Options of Open. Dir, Driver and Boot are required.
type Options struct {
	Dir    *state.Dir
	Driver vmm.Driver
	// Boot finds or builds what guests boot from. It is asked once, when the
	// first machine is wanted; progress is told what takes long.
	Boot func(ctx context.Context, progress func(string)) (machine.Boot, error)
	// Models answers llm_query; nil: nobody does.
	Models sandbox.Models
	Limits Limits
	Log    *slog.Logger
}

// Limits of the whole host; zero values are the documented defaults.
type Limits struct {
	// Sandboxes that are not ended; default 1024.
	Sandboxes int
	// OutputBytes kept of each stream of each program; default 16 MiB.
	OutputBytes int64
	// DiskBytes of checkpoints and bases; default: as many as fit.
	DiskBytes int64
	// HotBytes of checkpoints that are stored flat, for the fastest restore;
	// others are compacted. Default 8 GiB, below 0: none.
	HotBytes int64
}

// maxEvents is how many bytes of events are kept.
const maxEvents = 64 << 20

// recoverAtOnce bounds how many sandboxes are recovered at the same time.
const recoverAtOnce = 8

// Daemon is the one host process of a state directory.
type Daemon struct {
	options Options
	files   *state.Run
	engine  *machine.Engine
	events  *spool.Spool
	log     *slog.Logger

	ctx    context.Context
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	booting sync.Mutex
	boot    *machine.Boot

	collecting chan struct{} // held by one Collect

	mu        sync.Mutex // guards what follows
	sandboxes map[protocol.SandboxID]*Sandbox
	names     map[string]protocol.SandboxID // of sandboxes that are not ended
	keys      map[string]chan struct{}      // idempotency keys of requests under way
	closed    bool
}

var errDown = protocol.Errorf(protocol.CodeUnavailable, "the daemon is shutting down")

// Open takes the directory over from the process before and recovers every
// sandbox in it. It is CodeBusy while another daemon has it.
func Open(ctx context.Context, o Options) (*Daemon, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits.Sandboxes = cmp.Or(o.Limits.Sandboxes, 1024)
	o.Limits.OutputBytes = cmp.Or(o.Limits.OutputBytes, 16<<20)
	o.Limits.HotBytes = cmp.Or(o.Limits.HotBytes, 8<<30)
	files, err := o.Dir.Daemon()
	if protocol.CodeOf(err) == protocol.CodeBusy {
		return nil, protocol.Errorf(protocol.CodeBusy, "another ratoond serves %s; there is one for each state directory", o.Dir.Path())
	}
	if err != nil {
		return nil, err
	}
	d := &Daemon{options: o, files: files, log: o.Log, sandboxes: map[protocol.SandboxID]*Sandbox{}, names: map[string]protocol.SandboxID{},
		keys: map[string]chan struct{}{}, collecting: make(chan struct{}, 1)}
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Daemon) open(ctx context.Context) error {
	var err error
	if d.events, err = spool.Open(filepath.Join(d.files.Path, "events"), spool.Options{Limit: maxEvents}); err != nil {
		return err
	}
	if d.engine, err = d.newEngine(ctx); err != nil {
		return err
	}
	if err := d.forgetAnswers(); err != nil {
		return err
	}
	ids, err := d.files.Journal.Sandboxes()
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(recoverAtOnce)
	for _, id := range ids {
		s := d.newSandbox(id)
		d.sandboxes[id] = s
		all.Go(func() error {
			s.recover(ctx)
			return ctx.Err()
		})
	}
	if err := all.Wait(); err != nil {
		return context.Cause(ctx)
	}
	d.emit(Event{Kind: EventDaemonStarted})
	d.task(d.upkeep)
	return nil
}

// Close ends the process's part in everything. Machines of a daemon whose
// machines outlive it run on; others end, and their sandboxes are stopped.
func (d *Daemon) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel(errDown)
	var all sync.WaitGroup
	for _, s := range d.Sandboxes() {
		all.Go(s.down)
	}
	all.Wait()
	d.tasks.Wait()
	var errs []error
	if d.events != nil {
		errs = append(errs, d.events.Seal())
	}
	if d.engine != nil {
		errs = append(errs, d.engine.Close())
	}
	return errors.Join(append(errs, d.files.Close())...)
}

// Socket is the default place of the admin socket.
func (d *Daemon) Socket() string { return d.files.Socket() }

// Sandboxes lists all, by id.
func (d *Daemon) Sandboxes() []*Sandbox {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*Sandbox, 0, len(d.sandboxes))
	for _, s := range d.sandboxes {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *Sandbox) int { return cmp.Compare(a.id, b.id) })
	return out
}

// Sandbox finds one by id, or by the name of one that is not ended.
func (d *Daemon) Sandbox(name string) (*Sandbox, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, ok := d.names[name]
	if !ok {
		id = protocol.SandboxID(name)
	}
	if s := d.sandboxes[id]; s != nil {
		return s, nil
	}
	return nil, protocol.Errorf(protocol.CodeNotFound, "no sandbox %q", clip(name))
}

func clip(s string) string { return s[:min(len(s), 80)] }

// bootFiles are asked for once; a failure is tried again by the next one.
func (d *Daemon) bootFiles(ctx context.Context, progress func(string)) (machine.Boot, error) {
	d.booting.Lock()
	defer d.booting.Unlock()
	if d.boot == nil {
		b, err := d.options.Boot(ctx, progress)
		if err != nil {
			return machine.Boot{}, err
		}
		d.boot = &b
	}
	return *d.boot, nil
}

// task runs f in a goroutine that Close waits for. It is false, and f does not
// run, when the daemon is going down.
func (d *Daemon) task(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.tasks.Go(f)
	return true
}
