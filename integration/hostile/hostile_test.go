package hostile_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// short are the time-outs towards hostile guests.
var short = sandbox.Timeouts{Connect: 500 * time.Millisecond, Prepare: 500 * time.Millisecond, Ack: 300 * time.Millisecond, Silence: 1500 * time.Millisecond}

// Bounds far above what is seen, for busy machines.
const (
	maxSeconds = 60
	maxMiB     = 512
	settleTime = 20 * time.Second
)

// attack is one hostile guest.
type attack struct {
	name  string
	guest func() *guest
	// start: the first machine is never taken in.
	start protocol.Code
	// code is what a snapshot amid the attack answers; "": it succeeds;
	// "any": either, since the guest may be elsewhere at that moment.
	code protocol.Code
	// or: the snapshot may fail with this instead, when the two are a race.
	or protocol.Code
	// stopped: the guest is given up.
	stopped bool
	// dwell is how long the attack lasts before the snapshot.
	dwell time.Duration
}

func TestHostile(t *testing.T) {
	h := newHost(t)
	honest, err := h.start(t.Context(), sandbox.Timeouts{}, func() *guest { return &guest{} })
	if err != nil {
		t.Fatal(err)
	}
	defer honest.Close()
	idle := run(t, h, honest, attack{name: "idle", guest: func() *guest { return &guest{} }})
	t.Logf("idle guest: %s", idle)
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			f := run(t, h, honest, a)
			t.Logf("%s (idle guest: %.2f s, %.1f MiB)", f, idle.seconds, idle.mib)
			if f.seconds > maxSeconds || f.mib > maxMiB {
				t.Errorf("took %.1f s and %.0f MiB, want at most %d s and %d MiB", f.seconds, f.mib, maxSeconds, maxMiB)
			}
			if f.neighbour == 0 {
				t.Error("the honest sandbox made no snapshot meanwhile")
			}
		})
	}
}

// figures are what an attack cost.
type figures struct {
	seconds, mib float64
	links        int
	neighbour    int // snapshots of the honest sandbox
	slowest      float64
}

func (f figures) String() string {
	return fmt.Sprintf("%.2f s, %.1f MiB, %d links; neighbour: %d snapshots, slowest %.2f s", f.seconds, f.mib, f.links, f.neighbour, f.slowest)
}

func run(t *testing.T, h *host, honest *sandbox.Sandbox, a attack) (f figures) {
	t.Helper()
	before := levels(t)
	heap := watchHeap()
	neighbour := snapshots(t, honest)
	began := time.Now()
	var guests []*guest
	sb, err := h.start(t.Context(), short, func() *guest {
		guests = append(guests, a.guest())
		return guests[len(guests)-1]
	})
	if code := protocol.CodeOf(err); code != a.start && a.start != "any" || code == protocol.CodeInternal {
		t.Errorf("start: got %v, want %q", err, a.start)
	}
	if err == nil {
		time.Sleep(a.dwell)
		provoke(t, sb, a)
		sb.Close()
	}
	f.seconds = time.Since(began).Seconds()
	for _, g := range guests {
		f.links += g.links
	}
	f.neighbour, f.slowest = neighbour()
	f.mib = heap()
	settled(t, before)
	return f
}

// provoke makes a snapshot of the hostile guest and looks at what comes of it.
func provoke(t *testing.T, sb *sandbox.Sandbox, a attack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	_, err := sb.Snapshot(ctx, "", sandbox.SnapshotOptions{})
	code := protocol.CodeOf(err)
	if code != a.code && a.code != "any" && (a.or == "" || code != a.or) || code == protocol.CodeInternal {
		t.Errorf("snapshot: got %q (%v), want %q", code, err, a.code)
	}
	if a.stopped {
		select {
		case <-sb.Ended():
			if reason := sb.Reason(); reason == nil || reason.Code != protocol.CodeChildLost {
				t.Errorf("stopped for %+v, want %s", reason, protocol.CodeChildLost)
			}
		case <-ctx.Done():
			t.Error("the guest was not given up")
		}
		return
	}
	select {
	case <-sb.Ended():
		if a.code != "any" {
			t.Errorf("the timeline was stopped: %v", sb.Reason())
		}
	default:
	}
}

// snapshots lets a sandbox snapshot until the returned function is called.
func snapshots(t *testing.T, sb *sandbox.Sandbox) (stop func() (n int, slowest float64)) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	n, slowest := 0, time.Duration(0)
	done.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			if _, err := sb.Snapshot(t.Context(), "", sandbox.SnapshotOptions{}); err != nil {
				t.Errorf("snapshot of the honest guest: %v", err)
				return
			}
			n, slowest = n+1, max(slowest, time.Since(began))
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	return func() (int, float64) {
		cancel()
		done.Wait()
		return n, slowest.Seconds()
	}
}

// watchHeap returns by how much the heap grew at most, in MiB.
func watchHeap() (stop func() float64) {
	runtime.GC()
	read := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	start := read()
	end := make(chan struct{})
	var done sync.WaitGroup
	most := start
	done.Go(func() {
		for {
			most = max(most, read())
			select {
			case <-time.After(10 * time.Millisecond):
			case <-end:
				return
			}
		}
	})
	return func() float64 {
		close(end)
		done.Wait()
		return float64(most-start) / (1 << 20)
	}
}

// level is what must be given back.
type level struct{ goroutines, files int }

func levels(t *testing.T) level {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return level{runtime.NumGoroutine(), len(entries)}
}

// settled waits until goroutines and files are as few as before.
func settled(t *testing.T, before level) {
	t.Helper()
	deadline := time.Now().Add(settleTime)
	for {
		now := levels(t)
		if now.goroutines <= before.goroutines && now.files <= before.files {
			return
		}
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("left: %+v, before: %+v\n%s", now, before, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(10 * time.Millisecond)
	}
}
