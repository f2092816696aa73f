package simulation_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// labels are the steps at which a fault can happen: calls of the coordinator,
// and messages under way. A new one must be added here.
var labels = []string{
	"adopt", "capture", "connect", "durable", "kill", "load", "model", "pause", "publish", "remove", "room", "set-class", "sweep-disk", "sweep-vm", "un-pause",
	"journal.branch", "journal.branched", "journal.cancel", "journal.cancelled", "journal.collected", "journal.confirm", "journal.discard", "journal.drop",
	"journal.end", "journal.ends", "journal.exited", "journal.finish", "journal.hibernated", "journal.intend", "journal.left", "journal.move", "journal.moved",
	"journal.reserve", "journal.reserve-llm", "journal.restore", "journal.restored", "journal.settle-llm", "journal.start", "journal.started", "journal.stopped",
	"journal.swept", "journal.wake", "journal.wave",
	"to-host.attached", "to-host.call", "to-host.call-gone", "to-host.caller-exited", "to-host.drained", "to-host.end", "to-host.hello", "to-host.outcome-ack",
	"to-host.prepare-failed", "to-host.quiesced", "to-host.thawed", "to-host.pong", "to-vm.ping",
	"to-vm.abort", "to-vm.ack-position", "to-vm.attach", "to-vm.outcome", "to-vm.prepare", "to-vm.thaw",
}

// missing lists labels at which none of the faults happened, or which are not
// in the list above.
func (c *coverage) missing(faults ...string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, label := range labels {
		if !slices.ContainsFunc(faults, func(f string) bool { return c.counts[label][f] > 0 }) {
			out = append(out, label)
		}
	}
	for label := range c.counts {
		if !slices.Contains(labels, label) && !strings.HasPrefix(label, "guest.") {
			out = append(out, label+" (not listed)")
		}
	}
	return out
}

// coverage counts which fault happened where.
type coverage struct {
	mu     sync.Mutex
	counts map[string]map[string]int // by label, by fault
}

func newCoverage() *coverage { return &coverage{counts: map[string]map[string]int{}} }

func (c *coverage) hit(fault, label string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[label] == nil {
		c.counts[label] = map[string]int{}
	}
	c.counts[label][fault]++
}

func (c *coverage) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var faults []string
	for _, m := range c.counts {
		for f := range m {
			if !slices.Contains(faults, f) {
				faults = append(faults, f)
			}
		}
	}
	slices.Sort(faults)
	var b strings.Builder
	fmt.Fprintf(&b, "%-22s", "")
	for _, f := range faults {
		if f == "" {
			f = "(none)"
		}
		fmt.Fprintf(&b, " %15s", f)
	}
	for _, label := range slices.Sorted(maps.Keys(c.counts)) {
		fmt.Fprintf(&b, "\n%-22s", label)
		for _, f := range faults {
			if n := c.counts[label][f]; n > 0 {
				fmt.Fprintf(&b, " %15d", n)
			} else {
				fmt.Fprintf(&b, " %15s", "")
			}
		}
	}
	return b.String()
}
