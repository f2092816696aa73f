package simulation_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

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
