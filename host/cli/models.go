package cli

import (
	"context"
	"fmt"

	"github.com/ratoon-project/ratoon/host/llm"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// openModels makes the broker of --llm; nil without.
func openModels(spec string) (*llm.Broker, error) {
	if spec == "" {
		return nil, nil
	}
	upstream, err := llm.ParseSpec(spec, nil)
	if err != nil {
		return nil, fmt.Errorf("--llm: %w", err)
	}
	return llm.NewBroker(llm.Options{Upstream: upstream}), nil
}

// models joins the broker to a sandbox's ledger.
type models struct{ broker *llm.Broker }

var _ sandbox.Models = models{}

// Complete implements sandbox.Models.
func (m models) Complete(ctx context.Context, args protocol.LLMArgs, u sandbox.Usage) (protocol.LLMResult, error) {
	return m.broker.Query(ctx, llm.Call{Args: args, Ledger: ledger{u}})
}

// ledger is a sandbox's ledger as the broker sees it.
type ledger struct{ usage sandbox.Usage }

// Reserve implements llm.Ledger.
func (l ledger) Reserve(_ context.Context, _ protocol.TimelineID, _ protocol.Key, n int) error {
	return l.usage.Reserve(n)
}

// Settle implements llm.Ledger.
func (l ledger) Settle(_ context.Context, _ protocol.TimelineID, _ protocol.Key, usage []llm.Usage) error {
	var tokens, cost int64
	for _, u := range usage {
		tokens += u.PromptTokens + u.CompletionTokens
		cost += u.CostMicroUSD
	}
	return l.usage.Settle(tokens, cost)
}
