package simulation_test

import (
	"errors"
	"slices"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// strike lets a fault happen, if the kind that is drawn can.
func (w *world) strike() bool {
	kind := pick(w, w.plan.kinds)
	var happened bool
	w.faults--
	switch kind {
	case "kill":
		happened = w.host != nil && !w.host.closing
		if happened {
			w.atAll(kind)
			w.happened("FAULT", kind)
			w.kill()
		}
	case "crash":
		happened = w.chance(2)
		if happened {
			w.atAll(kind)
			w.happened("FAULT", kind)
			w.crash()
		}
	case "close":
		happened = w.running() != nil && !w.host.closing && w.chance(2)
		if happened {
			w.atAll(kind)
			w.happened("FAULT", kind)
			w.shut()
		}
	case "late":
		d := pick(w, []time.Duration{50 * time.Millisecond, 2 * time.Second, 6 * time.Second, 12 * time.Second, 26 * time.Second, 61 * time.Second})
		w.atAll(kind)
		w.happened("FAULT", kind, d)
		time.Sleep(d)
		happened = true
	case "call":
		happened = w.breakCall(w.plan.target)
	default:
		happened = w.strikeVM(kind)
	}
	if !happened {
		w.faults++
	} else if kind != "mute" && kind != "vm-death" && kind != "duplicate" && kind != "stale" && kind != "call" {
		w.rules.slow++
		if kind == "late" {
			w.rules.late++
		}
	}
	return happened
}

// underWay tells whether a call or message of this label waits.
func (w *world) underWay(label string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parked {
		if p.label == label {
			return true
		}
	}
	for _, v := range w.vms {
		if l := v.link; l != nil && (len(l.toHost) > 0 && "to-host."+typeOf(l.toHost[0]) == label || len(l.toGuest) > 0 && "to-vm."+typeOf(l.toGuest[0]) == label) {
			return true
		}
	}
	return false
}

// atAll counts a fault at everything that is under way.
func (w *world) atAll(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parked {
		w.cover.hit(kind, p.label)
	}
	for _, v := range w.vms {
		w.cover.hit(kind, "guest."+string(v.guest.machine.State()))
		if l := v.link; l != nil {
			for _, m := range l.toHost {
				w.cover.hit(kind, "to-host."+typeOf(m))
			}
			for _, m := range l.toGuest {
				w.cover.hit(kind, "to-vm."+typeOf(m))
			}
		}
	}
}

// breakCall makes a call fail, one at the target if there is one.
func (w *world) breakCall(target string) bool {
	var can []*parked
	w.mu.Lock()
	waiting := slices.Clone(w.parked)
	w.mu.Unlock()
	for _, p := range waiting {
		if len(p.faults) > 0 && p.label == target {
			can = []*parked{p}
			break
		}
		if len(p.faults) > 0 {
			can = append(can, p)
		}
	}
	if len(can) == 0 {
		return false
	}
	p := pick(w, can)
	f := pick(w, p.faults)
	w.cover.hit(string(f), p.label)
	w.happened("FAULT", p.label, f)
	if f == absent || f == present {
		w.rules.unclear++
	}
	w.release(p, f)
	return true
}

func (w *world) strikeVM(kind string) bool {
	if len(w.vms) == 0 {
		return false
	}
	v := pick(w, w.vms)
	l := v.link
	switch kind {
	case "vm-death":
		w.coverVM(kind, v)
		w.happened("FAULT", kind, v)
		v.die(errors.New("out of memory"))
	case "freeze-fails":
		if v.paused || v.guest.stopping == 0 {
			return false
		}
		w.coverVM(kind, v)
		w.happened("FAULT", kind, v)
		v.guest.stopped(errors.New("a program does not freeze"))
	case "stale":
		if l == nil || l.down || len(v.past) == 0 {
			return false
		}
		m := pick(w, v.past)
		w.coverVM(kind, v)
		w.happened("FAULT", kind, v, " ", m.Type())
		l.toGuest = slices.Insert(l.toGuest, w.rng.IntN(len(l.toGuest)+1), m)
	case "mute":
		if v.mute {
			return false
		}
		w.coverVM(kind, v)
		w.happened("FAULT", kind, v)
		v.mute = true
	case "worker-death":
		if v.paused {
			return false
		}
		w.coverVM(kind, v)
		w.happened("FAULT", kind, v)
		w.rules.lostLinks++
		v.guest.workerDies()
	case "link-loss":
		if l == nil || l.down || l.ended || v.paused {
			return false
		}
		w.coverVM(kind, v)
		w.happened("FAULT", kind, v)
		l.cut()
	case "duplicate":
		if l == nil {
			return false
		}
		q := &l.toHost
		if w.chance(2) {
			q = &l.toGuest
		}
		if len(*q) == 0 || (*q)[0] == nil {
			return false
		}
		if _, ok := (*q)[0].(*protocol.Hello); ok {
			return false // the first message of a link is one
		}
		w.coverVM(kind, v)
		w.happened("FAULT", kind, v, " ", (*q)[0].Type())
		at := 1
		if n := len(*q); n > 1 && (*q)[n-1] != nil && w.chance(2) {
			at = n
		}
		*q = slices.Insert(*q, at, (*q)[0])
	}
	return true
}

func (w *world) coverVM(kind string, v *vm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parked {
		if p.vm == v {
			w.cover.hit(kind, p.label)
		}
	}
	w.cover.hit(kind, "guest."+string(v.guest.machine.State()))
	if l := v.link; l != nil && len(l.toHost) > 0 {
		w.cover.hit(kind, "to-host."+typeOf(l.toHost[0]))
	}
	if l := v.link; l != nil && len(l.toGuest) > 0 {
		w.cover.hit(kind, "to-vm."+typeOf(l.toGuest[0]))
	}
}

// shut closes the daemon in order.
func (w *world) shut() {
	d := w.host
	d.closing = true
	go func() {
		defer close(d.gone)
		d.sandbox.Close()
	}()
}
