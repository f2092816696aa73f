package simulation_test

import (
	"context"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// action is something that may happen next.
type action struct {
	kind   string
	label  string
	detail any
	weight int
	run    func()
}

// maxSteps is far more than any schedule takes that comes to rest.
const maxSteps = 6000

// quiet is longer than all deadlines of host and guest one after another.
const quiet = 200 * time.Second

// run plays one schedule to its end, and returns what it violated.
func (w *world) run() string {
	w.disk.template(w.plan.spec.Template)
	w.boot()
	chaos := 60 + w.rng.IntN(500)
	for w.steps < chaos && w.step() {
	}
	w.calm = true
	for w.step() {
	}
	if w.failed() == "" {
		w.rules.atRest()
	}
	if w.failed() == "" {
		w.end()
	}
	violation := w.failed()
	w.close()
	return violation
}

// end ends the sandbox; nothing may be left of it.
func (w *world) end() {
	sb := w.running()
	if sb == nil {
		return
	}
	w.plan.drain = false
	w.wish("end", func(context.Context) error { return sb.End(nil) })
	for w.step() {
	}
	if w.failed() == "" {
		w.rules.atRest()
	}
	if len(w.vms) != 0 {
		w.fail("the sandbox has ended, and %v is there", w.vms)
	}
}

// close ends all goroutines.
func (w *world) close() {
	if w.host != nil {
		w.kill()
	}
	for range 100 {
		synctest.Wait()
		open := slices.ContainsFunc(w.hosts, func(d *daemon) bool { return !isClosed(d.gone) })
		if !open {
			return
		}
		time.Sleep(2 * time.Second)
	}
	w.fail("a killed daemon's Close does not return")
}

// step lets one thing happen. It is false when there is nothing left to do, or
// a rule was broken.
func (w *world) step() bool {
	synctest.Wait()
	w.rules.check()
	if w.failed() != "" {
		return false
	}
	w.steps++
	if w.steps > maxSteps {
		w.fail("no rest after %d steps: %s", maxSteps, w.dump())
		return false
	}
	// Timers that were set in different steps end at different times.
	time.Sleep(time.Microsecond)
	synctest.Wait()
	for _, v := range w.vms {
		if v.link != nil {
			v.link.order()
		}
	}
	often := w.plan.often
	if w.plan.target != "" {
		often *= 4
		if w.underWay(w.plan.target) {
			often = 2
		}
	}
	if w.plan.before != "" && w.faults > 1 && !w.calm && w.underWay(w.plan.before) && w.chance(3) && w.breakCall(w.plan.before) {
		w.faults--
		return true
	}
	if w.faults > 0 && !w.calm && w.chance(often) && w.strike() {
		return true
	}
	actions := w.enabled()
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	if total == 0 {
		return w.wait()
	}
	n := w.rng.IntN(total)
	for _, a := range actions {
		if n -= a.weight; n < 0 {
			w.happened(a.kind, a.label, a.detail)
			a.run()
			break
		}
	}
	return true
}

// wait lets time pass until something can happen.
func (w *world) wait() bool {
	limit := quiet
	for _, v := range w.vms {
		if g := v.guest; g.armed != 0 && !v.paused && !v.mute {
			limit = min(limit, max(time.Until(g.due), 0)+time.Microsecond)
		}
	}
	before := time.Now()
	if w.idle(limit) || limit < quiet {
		w.happened("time", "passes", time.Since(before))
		return true
	}
	return false
}

func (w *world) enabled() []action {
	var out []action
	add := func(weight int, kind, label string, detail any, run func()) {
		out = append(out, action{kind, label, detail, weight, run})
	}
	w.mu.Lock()
	parked := slices.Clone(w.parked)
	w.mu.Unlock()
	for _, p := range parked {
		if p.blocked == nil || !p.blocked() {
			add(4, "host", p.label, p.vm, func() {
				w.cover.hit(string(none), p.label)
				w.release(p, none)
			})
		}
	}
	for _, v := range w.vms {
		w.enabledVM(v, add)
	}
	switch {
	case w.host == nil:
		if isClosed(w.hosts[len(w.hosts)-1].gone) {
			add(2, "", "daemon starts", nil, w.boot)
		}
	case isClosed(w.host.started) && w.host.failed != nil:
		if w.faults == w.plan.faults {
			w.fail("the daemon does not start: %v", w.host.failed)
		}
		d := w.host
		add(2, "", "daemon gives up", d.failed, func() {
			w.host = nil
			close(d.gone)
			d.cancel()
		})
	case w.host.closing:
		if d := w.host; isClosed(d.gone) {
			add(4, "", "daemon is closed", nil, func() { w.host = nil; w.mu.Lock(); d.dead = true; w.mu.Unlock() })
		}
	case w.plan.wishes > 0 && !w.calm && w.running() != nil:
		add(1, "", "operator", nil, w.operate)
	}
	return out
}

func (w *world) enabledVM(v *vm, add func(int, string, string, any, func())) {
	l, g := v.link, v.guest
	if l != nil && len(l.toHost) > 0 && !v.mute {
		add(4, "to-host", typeOf(l.toHost[0]), v, func() {
			w.cover.hit(string(none), "to-host."+typeOf(l.toHost[0]))
			l.arrive()
		})
	}
	if v.paused || v.mute {
		return
	}
	if l != nil && !l.down {
		if len(l.toGuest) > 0 {
			m := l.toGuest[0]
			add(4, "to-vm", m.Type(), v, func() {
				w.cover.hit(string(none), "to-vm."+m.Type())
				l.toGuest = l.toGuest[1:]
				v.past = append(v.past, m)
				g.receive(m)
			})
		} else if l.hung {
			add(3, "guest", "link-down", v, l.guestDown)
		}
	}
	if g.stopping != 0 {
		add(3, "guest", "frozen", v, func() { g.stopped(nil) })
	}
	if g.armed != 0 && time.Now().After(g.due) {
		add(3, "guest", "deadline", v, g.deadline)
	}
	if g.frozen {
		return
	}
	for i := range g.memory.threads {
		t := &g.memory.threads[i]
		switch {
		case t.gone:
		case t.cut:
			add(2, "guest", "agent-restarted", v, func() { g.step(i) })
		case t.busy:
			if !w.calm && w.plan.calls > 0 && (t.call.kind == protocol.CallResults || t.call.kind == protocol.CallLLM) && w.chance(10) {
				add(1, "guest", "gives-up", v, func() {
					w.rules.gaveUp[t.call.key] = true
					g.giveUp(i)
				})
			}
		case w.calm:
			if w.plan.drain && g.isChild() && t.drained < 2 {
				add(2, "guest", "drains", v, func() {
					g.memory.threads[i].drained++
					g.call(i, protocol.CallFinish, protocol.FinishArgs{Result: []byte("done")})
				})
			}
		case w.plan.calls > 0:
			add(2, "guest", "steps", v, func() {
				w.plan.calls--
				g.step(i)
			})
		}
	}
}

func typeOf(m protocol.Message) string {
	if m == nil {
		return "end"
	}
	return m.Type()
}

// wish is an operator's operation under way.
type wish struct {
	name string
	host *daemon
	done chan struct{}
	err  error
}

func (w *world) wish(name string, f func(context.Context) error) {
	x := &wish{name: name, host: w.host, done: make(chan struct{})}
	w.wishes = append(w.wishes, x)
	go func() {
		defer close(x.done)
		x.err = f(context.Background())
	}()
}

// operate begins an operator's operation.
func (w *world) operate() {
	w.plan.wishes--
	sb := w.running()
	nodes := []string{""}
	for _, key := range sortedKeys(w.journal.lines) {
		if l := w.journal.lines[key]; l.Timeline != "" {
			nodes = append(nodes, l.Node)
		}
	}
	node := pick(w, nodes)
	var ids []protocol.CheckpointID
	for _, id := range w.disk.order {
		if s := w.disk.published(id); s != nil && s.meta.Class != sandbox.ClassInternal {
			ids = append(ids, id)
		}
	}
	id := pick(w, ids)
	switch n := w.rng.IntN(20); {
	case n < 7:
		durable := w.chance(3)
		w.happened("wish", "snapshot", node)
		w.wish("snapshot "+node, func(ctx context.Context) error {
			id, err := sb.Snapshot(ctx, node, sandbox.SnapshotOptions{Durable: durable})
			if err == nil && (w.disk.published(id) == nil || durable && !w.disk.published(id).meta.Durable) {
				w.fail("the operator is told of snapshot %s, which is not published or not durable (%v)", id, durable)
			}
			return err
		})
	case n < 14:
		o := sandbox.RestoreOptions{Payload: []byte("op"), DropPresent: w.chance(3), Detach: w.chance(4)}
		w.happened("wish", "restore", node, " ", id)
		w.wish("restore "+node, func(ctx context.Context) error { return sb.Restore(ctx, node, id, o) })
	case n < 19:
		a := protocol.BranchArgs{N: pick(w, sizes), At: id, MaxLive: w.rng.IntN(2)}
		for i := range a.N {
			a.Payloads = append(a.Payloads, fmt.Appendf(nil, "for %d", i))
		}
		w.happened("wish", "branch", id)
		w.wish("branch", func(ctx context.Context) error {
			_, err := sb.Branch(ctx, a)
			return err
		})
	default:
		w.happened("wish", "end")
		w.wish("end", func(context.Context) error { return sb.End(nil) })
	}
}
