package client

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
)

// LLMQuery asks the sandbox's model; model "" is its default.
func (c *Client) LLMQuery(ctx context.Context, prompt, model string) (string, error) {
	list, err := c.LLMQueryBatched(ctx, []string{prompt}, model)
	if err != nil {
		return "", err
	}
	if len(list) != 1 {
		return "", protocol.Errorf(protocol.CodeProtocol, "one prompt was answered by %d completions", len(list))
	}
	if list[0].Error != nil {
		return "", list[0].Error
	}
	return list[0].Text, nil
}

// LLMQueryBatched asks all prompts at once and answers them in order; each
// completion may have an error of its own.
func (c *Client) LLMQueryBatched(ctx context.Context, prompts []string, model string) ([]protocol.Completion, error) {
	var r protocol.LLMResult
	err := c.call(ctx, protocol.CallLLM, protocol.LLMArgs{Prompts: prompts, Model: model}, &r)
	return r.Completions, err
}

// Tree describes the sandbox's timelines and checkpoints.
func (c *Client) Tree(ctx context.Context) (protocol.TreeResult, error) {
	var r protocol.TreeResult
	err := c.call(ctx, protocol.CallTree, nil, &r)
	return r, err
}

// Whoami says which timeline this is.
func (c *Client) Whoami(ctx context.Context) (protocol.WhoamiResult, error) {
	var r protocol.WhoamiResult
	err := c.call(ctx, protocol.CallWhoami, nil, &r)
	return r, err
}

// Budget says what is left, by the names of protocol.Budget....
func (c *Client) Budget(ctx context.Context) (map[string]protocol.Budget, error) {
	var r protocol.BudgetResult
	err := c.call(ctx, protocol.CallBudget, nil, &r)
	return r.Budgets, err
}

// Sync returns when everything written to /workspace before it is on stable
// storage.
func (c *Client) Sync(ctx context.Context) (protocol.Position, error) {
	var r protocol.SyncResult
	err := c.call(ctx, protocol.CallSync, nil, &r)
	return r.Position, err
}
