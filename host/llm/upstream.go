package llm

import (
	"context"
	"strings"
)

// Request is one prompt. An empty Model is the upstream's default.
type Request struct {
	Model  string
	Prompt string
}

// Response is one answer and what it took.
type Response struct {
	Text             string
	PromptTokens     int64
	CompletionTokens int64
	CostMicroUSD     int64 // millionths of a US dollar; 0 when not known
}

// Upstream answers prompts. It is called from many goroutines. An error
// without a protocol code is reported as CodeModelFailed. An Upstream that is
// also an io.Closer is closed with the broker.
type Upstream interface {
	Complete(ctx context.Context, req Request) (Response, error)
}

// ordered is what an upstream has whose answers depend on the order of the
// calls: the prompts of one batch are then sent one after another.
type ordered interface{ Ordered() }

// Echo answers each prompt with itself, for tests. A token is a word.
type Echo struct{}

var _ Upstream = Echo{}

// Complete returns the prompt.
func (Echo) Complete(ctx context.Context, req Request) (Response, error) {
	if err := context.Cause(ctx); err != nil {
		return Response{}, err
	}
	return Response{Text: req.Prompt, PromptTokens: words(req.Prompt), CompletionTokens: words(req.Prompt)}, nil
}

func words(s string) int64 { return int64(len(strings.Fields(s))) }
