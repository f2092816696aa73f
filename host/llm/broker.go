package llm

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Usage is what one prompt of a call took.
type Usage struct {
	// Sent: the prompt went to the upstream; one that did not is free.
	Sent bool
	// Answered: the counts are the upstream's. A prompt that was sent and
	// not answered may have been billed all the same.
	Answered         bool
	PromptTokens     int64
	CompletionTokens int64
	CostMicroUSD     int64
}

// Ledger keeps the budgets of the model calls.
type Ledger interface {
	// Reserve is called once before anything of a call of n prompts is sent;
	// its error (CodeOverBudget) ends the call.
	Reserve(ctx context.Context, timeline protocol.TimelineID, key protocol.Key, n int) error
	// Settle is called once after each successful Reserve, with one Usage
	// per prompt, also when the call was cancelled; ctx is then still alive.
	Settle(ctx context.Context, timeline protocol.TimelineID, key protocol.Key, usage []Usage) error
}

// Options of NewBroker.
type Options struct {
	Upstream Upstream // nil: every call answers CodeNoModel
	Ledger   Ledger   // nil: nothing is counted
	// Concurrency is how many prompts are with the upstream at once; 0: 8.
	Concurrency int
	// Queue is how many prompts may wait or be with the upstream; one call
	// larger than that is still taken when nothing else is there. 0: 4096.
	Queue int
	// Timeout of each prompt; 0: 10 minutes.
	Timeout time.Duration
	Log     *slog.Logger // nil: discarded
}

// Call is a guest's llm_query or llm_query_batched.
type Call struct {
	Timeline protocol.TimelineID
	Key      protocol.Key
	Args     protocol.LLMArgs
	// Ledger counts this call; nil: that of the Options.
	Ledger Ledger
}

const maxModelName = 256

// maxTexts leaves room for the rest of a message around the answers.
const maxTexts = protocol.MaxMessage - 4<<20

// Broker runs model calls.
type Broker struct {
	opt   Options
	slots chan struct{}

	ctx    context.Context
	cancel context.CancelCauseFunc
	calls  sync.WaitGroup

	mu       sync.Mutex
	admitted int // prompts
	closed   bool
}

// NewBroker makes a broker that owns the upstream.
func NewBroker(opt Options) *Broker {
	if opt.Concurrency <= 0 {
		opt.Concurrency = 8
	}
	if opt.Queue <= 0 {
		opt.Queue = 4096
	}
	if opt.Timeout <= 0 {
		opt.Timeout = 10 * time.Minute
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Ledger == nil {
		opt.Ledger = noLedger{}
	}
	b := &Broker{opt: opt, slots: make(chan struct{}, opt.Concurrency)}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	return b
}

// Close cancels what is under way, waits for it and closes the upstream.
func (b *Broker) Close() error {
	b.mu.Lock()
	again := b.closed
	b.closed = true
	b.mu.Unlock()
	b.cancel(errClosed)
	b.calls.Wait()
	if again {
		return nil
	}
	return closeUpstream(b.opt.Upstream)
}

var errClosed = protocol.Errorf(protocol.CodeUnavailable, "the model broker is closed")

// closeUpstream closes u if it can be closed.
func closeUpstream(u Upstream) error {
	if c, ok := u.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Query sends the prompts in order, at most Options.Concurrency at once over
// all calls, and returns one completion per prompt. Calls take turns prompt by
// prompt, so that a large batch does not keep a single prompt waiting.
func (b *Broker) Query(ctx context.Context, call Call) (protocol.LLMResult, error) {
	if err := b.check(call.Args); err != nil {
		return protocol.LLMResult{}, err
	}
	n := len(call.Args.Prompts)
	if err := b.admit(n); err != nil {
		return protocol.LLMResult{}, err
	}
	defer b.leave(n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.ctx, func() { cancel(context.Cause(b.ctx)) })()

	ledger := call.Ledger
	if ledger == nil {
		ledger = b.opt.Ledger
	}
	if err := ledger.Reserve(ctx, call.Timeline, call.Key, n); err != nil {
		return protocol.LLMResult{}, err
	}
	completions, usage := b.run(ctx, call.Args)
	cause := context.Cause(ctx)
	if err := ledger.Settle(context.WithoutCancel(ctx), call.Timeline, call.Key, usage); err != nil {
		return protocol.LLMResult{}, err
	}
	b.opt.Log.Debug("model call", "timeline", call.Timeline, "key", call.Key.String(), "prompts", n)
	if cause != nil {
		return protocol.LLMResult{}, cancelled(cause)
	}
	return protocol.LLMResult{Completions: completions}, nil
}

func (b *Broker) check(args protocol.LLMArgs) error {
	switch n := len(args.Prompts); {
	case b.opt.Upstream == nil:
		return protocol.Errorf(protocol.CodeNoModel, "this sandbox has no model")
	case n == 0:
		return protocol.Errorf(protocol.CodeInvalidArgument, "no prompt")
	case n > protocol.MaxBatch:
		return protocol.Errorf(protocol.CodeTooLarge, "%d prompts, at most %d", n, protocol.MaxBatch)
	case len(args.Model) > maxModelName:
		return protocol.Errorf(protocol.CodeTooLarge, "the model's name has %d bytes, at most %d", len(args.Model), maxModelName)
	}
	for i, p := range args.Prompts {
		if len(p) > protocol.MaxPayload {
			return protocol.Errorf(protocol.CodeTooLarge, "prompt %d has %d bytes, at most %d", i, len(p), protocol.MaxPayload)
		}
	}
	return nil
}

func (b *Broker) admit(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errClosed
	}
	if b.admitted > 0 && b.admitted+n > b.opt.Queue {
		return protocol.Errorf(protocol.CodeBusy, "%d prompts are waiting for the model, at most %d", b.admitted, b.opt.Queue)
	}
	b.admitted += n
	b.calls.Add(1)
	return nil
}

func (b *Broker) leave(n int) {
	b.mu.Lock()
	b.admitted -= n
	b.mu.Unlock()
	b.calls.Done()
}

// run sends the prompts and waits for all that were sent.
func (b *Broker) run(ctx context.Context, args protocol.LLMArgs) ([]protocol.Completion, []Usage) {
	completions := make([]protocol.Completion, len(args.Prompts))
	usage := make([]Usage, len(args.Prompts))
	_, inOrder := b.opt.Upstream.(ordered)
	var sent sync.WaitGroup
	for i, prompt := range args.Prompts {
		if !b.slot(ctx) {
			break // the call fails as a whole
		}
		sent.Go(func() {
			defer func() { <-b.slots }()
			completions[i], usage[i] = b.complete(ctx, Request{args.Model, prompt})
		})
		if inOrder {
			sent.Wait()
		}
	}
	sent.Wait()
	bound(completions)
	return completions, usage
}

// slot waits for a place with the upstream.
func (b *Broker) slot(ctx context.Context) bool {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil {
		<-b.slots
		return false
	}
	return true
}

func (b *Broker) complete(ctx context.Context, req Request) (protocol.Completion, Usage) {
	late := protocol.Errorf(protocol.CodeTimeout, "the model did not answer within %s", b.opt.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, b.opt.Timeout, late)
	defer cancel()
	resp, err := b.opt.Upstream.Complete(ctx, req)
	usage := Usage{
		Sent: true, Answered: err == nil || resp != (Response{}),
		PromptTokens: max(resp.PromptTokens, 0), CompletionTokens: max(resp.CompletionTokens, 0), CostMicroUSD: max(resp.CostMicroUSD, 0),
	}
	c := protocol.Completion{PromptTokens: usage.PromptTokens, CompletionTokens: usage.CompletionTokens}
	switch {
	case err != nil && ctx.Err() != nil:
		c.Error = protocol.AsError(cancelled(context.Cause(ctx)))
	case err != nil:
		c.Error = modelFailed(err)
	case len(resp.Text) > protocol.MaxPayload:
		c.Error = protocol.Errorf(protocol.CodeTooLarge, "the answer has %d bytes, at most %d", len(resp.Text), protocol.MaxPayload)
	default:
		c.Text = strings.ToValidUTF8(resp.Text, "\uFFFD")
	}
	return c, usage
}

// bound keeps the result of a batch within one message.
func bound(completions []protocol.Completion) {
	total := 0
	for i := range completions {
		c := &completions[i]
		if total+len(c.Text) > maxTexts {
			c.Error = protocol.Errorf(protocol.CodeTooLarge, "the answers of the batch have more than %d bytes; send fewer prompts at once", maxTexts)
			c.Text = ""
		}
		total += len(c.Text)
	}
}

// modelFailed gives an upstream's error a code.
func modelFailed(err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	return protocol.Errorf(protocol.CodeModelFailed, "%v", err)
}

// cancelled gives the reason of a cancelled call a code.
func cancelled(cause error) error {
	if e, ok := errors.AsType[*protocol.Error](cause); ok {
		return e
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimeout, "the model call took too long")
	}
	return protocol.Errorf(protocol.CodeCancelled, "the model call was cancelled")
}

type noLedger struct{}

var _ Ledger = noLedger{}

func (noLedger) Reserve(context.Context, protocol.TimelineID, protocol.Key, int) error { return nil }
func (noLedger) Settle(context.Context, protocol.TimelineID, protocol.Key, []Usage) error {
	return nil
}
