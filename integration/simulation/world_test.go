package simulation_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// world is everything around the coordinator. But for what is said to be
// guarded, only the scheduler's goroutine touches it, while all others wait.
type world struct {
	plan  plan
	rng   *rand.Rand
	cover *coverage

	steps   int
	calm    bool // no faults, no new wishes
	faults  int  // left
	digest  uint64
	tracing bool
	trace   []string
	names   map[string]string // of ids, in traces

	journal *journal
	disk    *disk
	vms     []*vm // that exist as processes
	made    int   // VMs so far
	host    *daemon
	hosts   []*daemon // all
	wishes  []*wish   // operators' operations under way
	rules   rules

	mu      sync.Mutex // guards what follows
	parked  []*parked
	arrived chan struct{} // of size 1: something was parked
	failure string
}

func newWorld(p plan, c *coverage, tracing bool) *world {
	w := &world{plan: p, rng: rand.New(rand.NewPCG(p.seed, 0x7261746f6f6e)), cover: c, faults: p.faults, tracing: tracing,
		names: map[string]string{}, arrived: make(chan struct{}, 1)}
	w.journal = newJournal(w)
	w.disk = newDisk(w)
	w.rules = newRules(w)
	return w
}

// fail records the first violation; the schedule ends with the step.
func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
	}
}

func (w *world) failed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

// happened appends one step to the trace.
func (w *world) happened(kind, what string, detail ...any) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %s", w.digest, kind, what)
	w.digest = h.Sum64()
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%4d %-7s %s %s", w.steps, kind, what, w.short(fmt.Sprint(detail...))))
	}
}

// chance is true once in n.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

// pick chooses one of n.
func pick[T any](w *world, of []T) T { return of[w.rng.IntN(len(of))] }

// errKilled is what calls of a daemon that was killed are told: nothing of it
// is left to hear it.
var errKilled = errors.New("this daemon was killed")

// parked is a call of the coordinator that waits for the scheduler.
type parked struct {
	label   string
	id      string // of what it is about; tells calls of one label apart
	host    *daemon
	vm      *vm // it is about, may be nil
	faults  []fault
	blocked func() bool // may not be let go yet; nil: never
	effect  func(fault) error
	verdict chan error
}

// fault is a way in which a call can fail.
type fault string

// The faults of calls.
const (
	none    fault = ""
	full    fault = "disk-full"
	refused fault = "error"
	absent  fault = "unclear-absent"  // of a journal write
	present fault = "unclear-present" // of a journal write
)

// do parks until the scheduler lets the call happen: effect then runs in the
// scheduler's goroutine.
func (d *daemon) do(ctx context.Context, p *parked) error {
	w := d.world
	p.host, p.verdict = d, make(chan error, 1)
	if p.vm != nil {
		p.id = string(p.vm.id)
	}
	w.mu.Lock()
	if d.dead {
		w.mu.Unlock()
		return errKilled
	}
	// In an order that does not depend on which goroutine came first.
	i, _ := slices.BinarySearchFunc(w.parked, p, func(a, b *parked) int { return cmp.Or(cmp.Compare(a.label, b.label), cmp.Compare(a.id, b.id)) })
	for i < len(w.parked) && w.parked[i].label == p.label && w.parked[i].id == p.id {
		i++
	}
	w.parked = slices.Insert(w.parked, i, p)
	w.mu.Unlock()
	w.wakeUp()
	select {
	case err := <-p.verdict:
		return err
	case <-ctx.Done():
		w.mu.Lock()
		i := slices.Index(w.parked, p)
		if i >= 0 {
			w.parked = slices.Delete(w.parked, i, i+1)
		}
		w.mu.Unlock()
		if i >= 0 {
			return context.Cause(ctx)
		}
		return <-p.verdict // it has happened
	}
}

// wakeUp ends the idling of the scheduler.
func (w *world) wakeUp() {
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// release lets a parked call happen.
func (w *world) release(p *parked, f fault) {
	w.mu.Lock()
	w.parked = slices.Delete(w.parked, slices.Index(w.parked, p), slices.Index(w.parked, p)+1)
	w.mu.Unlock()
	p.verdict <- p.effect(f)
}

// daemon is one process of the host.
type daemon struct {
	world   *world
	number  int
	dead    bool // guarded by world.mu
	cancel  context.CancelFunc
	sandbox *sandbox.Sandbox
	failed  error         // of Start or Recover
	started chan struct{} // Start or Recover has returned
	gone    chan struct{} // closed when all of a killed daemon's goroutines ended
	closing bool          // Close was called

	sweeping   bool                  // recovers, and has not un-paused or spoken yet
	deadAtBoot []protocol.TimelineID // live, without a machine
}

// boot starts a daemon, with Start for the first and Recover for others.
func (w *world) boot() {
	d := &daemon{world: w, number: len(w.hosts), started: make(chan struct{}), gone: make(chan struct{})}
	w.hosts = append(w.hosts, d)
	w.host = d
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	deps := sandbox.Deps{Machines: machines{d}, Checkpoints: checkpoints{d}, Journal: journalPort{d}, Models: models{d}, Resident: w.plan.resident}
	fresh := w.journal.sandbox.ID == ""
	d.sweeping = !fresh
	for _, key := range sortedKeys(w.journal.timelines) {
		if t := w.journal.timelines[key]; t.State == sandbox.StateLive && w.find(t.VM) == nil {
			d.deadAtBoot = append(d.deadAtBoot, t.ID)
		}
	}
	go func() {
		defer close(d.started)
		if fresh {
			d.sandbox, d.failed = sandbox.Start(ctx, deps, w.plan.id, w.plan.spec)
		} else {
			d.sandbox, d.failed = sandbox.Recover(ctx, deps, w.plan.id)
		}
	}()
}

// running is the sandbox of the present daemon, nil while there is none.
func (w *world) running() *sandbox.Sandbox {
	if w.host == nil || !isClosed(w.host.started) {
		return nil
	}
	return w.host.sandbox
}

// kill ends the daemon as SIGKILL would. Calls under way may have had their
// effect already.
func (w *world) kill() {
	d := w.host
	w.host = nil
	w.mu.Lock()
	d.dead = true
	mine := w.parked
	w.parked = nil
	w.mu.Unlock()
	d.cancel()
	for _, p := range mine {
		if (p.blocked == nil || !p.blocked()) && w.chance(2) {
			f := none
			if slices.Contains(p.faults, absent) && w.chance(4) {
				f = absent
			}
			p.effect(f)
			w.happened("", "  after "+p.label)
		}
		p.verdict <- errKilled
	}
	for _, v := range w.vms {
		if v.link != nil {
			v.link.hangUp()
		}
	}
	if !w.plan.resident {
		for _, v := range slices.Clone(w.vms) {
			v.die(errors.New("ended with its parent"))
		}
	}
	if d.closing {
		return // and goes on to end
	}
	go func() {
		defer close(d.gone)
		// Start and Recover end by themselves, with their context.
		<-d.started
		if d.sandbox != nil {
			d.sandbox.Close()
		}
	}()
}

// crash is the end of the host: of the daemon, of all VMs, and of what was
// published but is not durable, as the disk likes.
func (w *world) crash() {
	if w.host != nil {
		w.kill()
	}
	for _, v := range slices.Clone(w.vms) {
		v.die(errors.New("the host crashed"))
	}
	w.disk.crash()
}

// idle lets time pass until the coordinator asks for something, or for d.
func (w *world) idle(d time.Duration) (arrived bool) {
	select {
	case <-w.arrived:
	default:
	}
	if w.releasable() {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.arrived:
		synctest.Wait()
		return true
	case <-t.C:
		return false
	}
}

func (w *world) releasable() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parked {
		if p.blocked == nil || !p.blocked() {
			return true
		}
	}
	return false
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// models answers at once, or not, or late.
type models struct{ host *daemon }

func (m models) Complete(ctx context.Context, a protocol.LLMArgs, u sandbox.Usage) (protocol.LLMResult, error) {
	if err := u.Reserve(len(a.Prompts)); err != nil {
		return protocol.LLMResult{}, err
	}
	err := m.host.do(ctx, &parked{label: "model", faults: []fault{refused}, effect: func(f fault) error {
		if f == refused {
			return protocol.Errorf(protocol.CodeModelFailed, "no answer from the model")
		}
		return nil
	}})
	if err != nil {
		return protocol.LLMResult{}, err
	}
	if err := u.Settle(10, 5); err != nil {
		return protocol.LLMResult{}, err
	}
	return protocol.LLMResult{Completions: []protocol.Completion{{Text: "yes"}}}, nil
}
