package sandbox

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
)

// Limits are the budgets of one sandbox. Zero means no limit, but for Depth,
// Width and Live, which have defaults.
type Limits struct {
	Depth     int   // branches of branches; 0: 16
	Width     int   // children of one branch; 0: 64
	Live      int   // running machines; 0: 32
	Memory    int64 // bytes of guest RAM of the running machines
	Disk      int64 // bytes of checkpoints
	LLMCalls  int64 // prompts
	LLMTokens int64
	LLMCost   int64 // millionths of a US dollar
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.Depth, 16)
	set(&l.Width, 64)
	set(&l.Live, 32)
	return l
}

const ledgerKey = "sandbox"

// ledgerRecord is what the sandbox has used up. It only grows: neither a
// restore nor a restart gives anything back.
type ledgerRecord struct {
	LLMCalls  int64
	LLMTokens int64
	LLMCost   int64
}

func overBudget(name string, limit, used int64, format string, args ...any) error {
	e := protocol.Errorf(protocol.CodeOverBudget, format, args...)
	return e.With("budget", name).With("limit", limit).With("used", used)
}

// reserveBranch checks depth, width, live machines and memory, and holds the
// room of the first wave until it is counted as running.
func (s *Sandbox) reserveBranch(b *branching) (unreserve func(), err error) {
	l := s.spec.Limits.withDefaults()
	var parent LineRecord
	err = s.view(func(tx Tx) error {
		var err error
		parent, err = lines.need(tx, string(b.line))
		return err
	})
	if err != nil {
		return nil, err
	}
	if parent.Depth+1 > l.Depth {
		return nil, overBudget(protocol.BudgetDepth, int64(l.Depth), int64(parent.Depth), "over budget: depth %d, limit %d", parent.Depth+1, l.Depth)
	}
	if b.args.N > l.Width {
		return nil, overBudget(protocol.BudgetWidth, int64(l.Width), int64(b.args.N), "over budget: branch(%d), limit of width %d", b.args.N, l.Width)
	}
	n := wave(b.args)
	if err := s.reserve(n); err != nil {
		return nil, err
	}
	return func() { s.unreserve(n) }, nil
}

// reserve holds the room of n machines until they run or are given up.
func (s *Sandbox) reserve(n int) error {
	l := s.spec.Limits.withDefaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	used := len(s.timelines) + s.reserved
	if used+n > l.Live {
		return overBudget(protocol.BudgetLive, int64(l.Live), int64(used), "over budget: %d machines run, %d more would exceed the limit of %d", used, n, l.Live)
	}
	if l.Memory > 0 && int64(used+n)*s.spec.MemoryBytes > l.Memory {
		return overBudget(protocol.BudgetMemory, l.Memory, int64(used)*s.spec.MemoryBytes,
			"over budget: %d machines of %d bytes would exceed the memory limit of %d", used+n, s.spec.MemoryBytes, l.Memory)
	}
	s.reserved += n
	return nil
}

// unreserve gives the room back, to later waves first.
func (s *Sandbox) unreserve(n int) {
	s.mu.Lock()
	s.reserved -= n
	s.mu.Unlock()
	if n > 0 {
		s.wakeWaiters()
	}
}

// reserveReplacement holds the room of a restore's new machine. While the old
// one runs, one restore at a time may have it beyond the limits.
func (s *Sandbox) reserveReplacement(ctx context.Context, running bool) (unreserve func(), err error) {
	if err = s.reserve(1); err == nil {
		return func() { s.unreserve(1) }, nil
	}
	if !running {
		return nil, err
	}
	if err := s.spare.enter(ctx); err != nil {
		return nil, err
	}
	return s.spare.leave, nil
}

// checkDisk refuses a capture when the sandbox's checkpoints are at their
// limit or the disk is full.
func (s *Sandbox) checkDisk(ctx context.Context) error {
	if limit := s.spec.Limits.Disk; limit > 0 {
		used, err := s.diskUsed(ctx)
		if err != nil {
			return err
		}
		if used >= limit {
			return overBudget(protocol.BudgetDisk, limit, used, "over budget: checkpoints hold %d bytes, limit %d", used, limit)
		}
	}
	return s.checkpoints.Room(ctx)
}

func (s *Sandbox) diskUsed(ctx context.Context) (int64, error) {
	if d, ok := s.checkpoints.(DiskUser); ok {
		return d.DiskUsed(ctx)
	}
	list, err := s.checkpoints.List(ctx)
	var used int64
	for _, cp := range list {
		used += cp.Bytes
	}
	return used, err
}

// usage is the ledger as the broker of model calls sees it.
type usage struct{ s *Sandbox }

var _ Usage = usage{}

// Reserve counts prompts durably before they are sent, so that a host that
// dies between an answer and its record has counted it.
func (u usage) Reserve(prompts int) error {
	return u.s.commit("journal.reserve-llm", func(tx Tx) error {
		return ledgers.change(tx, ledgerKey, func(r *ledgerRecord) error {
			l := u.s.spec.Limits
			switch {
			case l.LLMCalls > 0 && r.LLMCalls+int64(prompts) > l.LLMCalls:
				return overBudget(protocol.BudgetLLMCalls, l.LLMCalls, r.LLMCalls, "over budget: %d model calls made, limit %d", r.LLMCalls, l.LLMCalls)
			case l.LLMTokens > 0 && r.LLMTokens >= l.LLMTokens:
				return overBudget(protocol.BudgetLLMTokens, l.LLMTokens, r.LLMTokens, "over budget: %d tokens used, limit %d", r.LLMTokens, l.LLMTokens)
			case l.LLMCost > 0 && r.LLMCost >= l.LLMCost:
				return overBudget(protocol.BudgetLLMCost, l.LLMCost, r.LLMCost, "over budget: model calls cost %d millionths of a dollar, limit %d", r.LLMCost, l.LLMCost)
			}
			r.LLMCalls += int64(prompts)
			return nil
		})
	})
}

func (u usage) Settle(tokens, microUSD int64) error {
	return u.s.commit("journal.settle-llm", func(tx Tx) error {
		return ledgers.change(tx, ledgerKey, func(r *ledgerRecord) error {
			r.LLMTokens += tokens
			r.LLMCost += microUSD
			return nil
		})
	})
}

// Budget is the state of every budget as a node's timeline sees it.
func (s *Sandbox) Budget(ctx context.Context, node string) (protocol.BudgetResult, error) {
	t, err := s.liveAt(node)
	if err != nil {
		return protocol.BudgetResult{}, err
	}
	return s.budget(t)
}

func (s *Sandbox) budget(t *timeline) (protocol.BudgetResult, error) {
	l := s.spec.Limits.withDefaults()
	var led ledgerRecord
	var line LineRecord
	err := s.view(func(tx Tx) error {
		var err error
		if led, _, err = ledgers.get(tx, ledgerKey); err != nil {
			return err
		}
		line, err = lines.need(tx, string(t.line))
		return err
	})
	if err != nil {
		return protocol.BudgetResult{}, err
	}
	disk, err := s.diskUsed(t.ctx)
	if err != nil {
		return protocol.BudgetResult{}, err
	}
	s.mu.Lock()
	live := int64(len(s.timelines) + s.reserved)
	s.mu.Unlock()
	limit := func(v int64) int64 {
		if v == 0 {
			return -1
		}
		return v
	}
	return protocol.BudgetResult{Budgets: map[string]protocol.Budget{
		protocol.BudgetDepth:     {Limit: int64(l.Depth), Used: int64(line.Depth)},
		protocol.BudgetWidth:     {Limit: int64(l.Width)},
		protocol.BudgetLive:      {Limit: int64(l.Live), Used: live},
		protocol.BudgetMemory:    {Limit: limit(l.Memory), Used: live * s.spec.MemoryBytes},
		protocol.BudgetDisk:      {Limit: limit(l.Disk), Used: disk},
		protocol.BudgetLLMCalls:  {Limit: limit(l.LLMCalls), Used: led.LLMCalls},
		protocol.BudgetLLMTokens: {Limit: limit(l.LLMTokens), Used: led.LLMTokens},
		protocol.BudgetLLMCost:   {Limit: limit(l.LLMCost), Used: led.LLMCost},
	}}, nil
}
