package llm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ratoon-project/ratoon/host/llm"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ledger is an honest account of calls: what is reserved and what is settled.
type ledger struct {
	mu       sync.Mutex
	limit    int
	reserved map[protocol.Key]int
	settled  map[protocol.Key][]llm.Usage
	twice    []protocol.Key
	failNext error
}

func newLedger(limit int) *ledger {
	return &ledger{limit: limit, reserved: map[protocol.Key]int{}, settled: map[protocol.Key][]llm.Usage{}}
}

func (l *ledger) Reserve(_ context.Context, _ protocol.TimelineID, key protocol.Key, n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.limit {
		return protocol.Errorf(protocol.CodeOverBudget, "llm_calls: limit reached")
	}
	if _, ok := l.reserved[key]; ok {
		l.twice = append(l.twice, key)
	}
	l.limit -= n
	l.reserved[key] = n
	return nil
}

func (l *ledger) Settle(ctx context.Context, _ protocol.TimelineID, key protocol.Key, usage []llm.Usage) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.settled[key]; ok {
		l.twice = append(l.twice, key)
	}
	l.settled[key] = usage
	for _, u := range usage {
		if !u.Sent {
			l.limit++
		}
	}
	return l.failNext
}

// upstream calls a function and counts.
type upstream struct {
	mu        sync.Mutex
	calls     []string
	now, most int
	answer    func(ctx context.Context, req llm.Request) (llm.Response, error)
}

func (u *upstream) Complete(ctx context.Context, req llm.Request) (llm.Response, error) {
	u.mu.Lock()
	u.calls = append(u.calls, req.Prompt)
	u.now++
	u.most = max(u.most, u.now)
	u.mu.Unlock()
	defer func() { u.mu.Lock(); u.now--; u.mu.Unlock() }()
	return u.answer(ctx, req)
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.calls)
}

func prompts(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("prompt %d", i)
	}
	return out
}

func call(prompts ...string) llm.Call {
	tl := protocol.NewTimelineID()
	return llm.Call{Timeline: tl, Key: protocol.Key{Timeline: tl, Start: 1, Sequence: 1}, Args: protocol.LLMArgs{Prompts: prompts}}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func code(t testing.TB, err error, want protocol.Code) *protocol.Error {
	t.Helper()
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e.Code != want {
		t.Fatalf("got %v, want code %s", err, want)
	}
	return e
}

func TestBatchInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := &upstream{answer: func(_ context.Context, req llm.Request) (llm.Response, error) {
			// Later prompts answer sooner.
			var i int
			fmt.Sscanf(req.Prompt, "prompt %d", &i)
			time.Sleep(time.Duration(100-i) * time.Millisecond)
			return llm.Response{Text: "re: " + req.Prompt, PromptTokens: 2, CompletionTokens: 3, CostMicroUSD: 7}, nil
		}}
		l := newLedger(100)
		b := llm.NewBroker(llm.Options{Upstream: up, Ledger: l, Concurrency: 3})
		defer b.Close()
		c := call(prompts(20)...)
		got, err := b.Query(t.Context(), c)
		check(t, err)
		for i, a := range got.Completions {
			want := protocol.Completion{Text: fmt.Sprintf("re: prompt %d", i), PromptTokens: 2, CompletionTokens: 3}
			if d := cmp.Diff(want, a); d != "" {
				t.Errorf("%d (-want +got):\n%s", i, d)
			}
		}
		if up.most != 3 || len(up.calls) != 20 {
			t.Errorf("%d at once, %d calls; want 3, 20", up.most, len(up.calls))
		}
		usage := l.settled[c.Key]
		if len(usage) != 20 || l.limit != 80 || l.twice != nil {
			t.Errorf("settled %d, left %d, twice %v", len(usage), l.limit, l.twice)
		}
		for _, u := range usage {
			if d := cmp.Diff(llm.Usage{Sent: true, Answered: true, PromptTokens: 2, CompletionTokens: 3, CostMicroUSD: 7}, u); d != "" {
				t.Errorf("usage (-want +got):\n%s", d)
			}
		}
	})
}

func TestNothingSentOverBudget(t *testing.T) {
	t.Parallel()
	up := &upstream{}
	l := newLedger(2)
	b := llm.NewBroker(llm.Options{Upstream: up, Ledger: l})
	defer b.Close()
	_, err := b.Query(t.Context(), call(prompts(3)...))
	code(t, err, protocol.CodeOverBudget)
	if up.count() != 0 || len(l.settled) != 0 {
		t.Errorf("%d sent, %d settled; want none", up.count(), len(l.settled))
	}
}

func TestRefusedBeforeReserve(t *testing.T) {
	t.Parallel()
	long := call(strings.Repeat("x", protocol.MaxPayload+1))
	name := call("p")
	name.Args.Model = strings.Repeat("m", 257)
	for what, tc := range map[string]struct {
		up   llm.Upstream
		call llm.Call
		want protocol.Code
	}{
		"no model":   {nil, call("p"), protocol.CodeNoModel},
		"no prompt":  {llm.Echo{}, call(), protocol.CodeInvalidArgument},
		"too many":   {llm.Echo{}, call(prompts(protocol.MaxBatch + 1)...), protocol.CodeTooLarge},
		"too long":   {llm.Echo{}, long, protocol.CodeTooLarge},
		"model name": {llm.Echo{}, name, protocol.CodeTooLarge},
	} {
		l := newLedger(1 << 20)
		b := llm.NewBroker(llm.Options{Upstream: tc.up, Ledger: l})
		_, err := b.Query(t.Context(), tc.call)
		if protocol.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", what, err, tc.want)
		}
		if len(l.reserved) != 0 {
			t.Errorf("%s: reserved", what)
		}
		check(t, b.Close())
	}
}

func TestOnePromptFails(t *testing.T) {
	t.Parallel()
	up := &upstream{answer: func(_ context.Context, req llm.Request) (llm.Response, error) {
		switch req.Prompt {
		case "prompt 1":
			return llm.Response{}, errors.New("connection reset")
		case "prompt 2":
			return llm.Response{PromptTokens: 5, CostMicroUSD: 1}, protocol.Errorf(protocol.CodeModelFailed, "no choice")
		case "prompt 3":
			return llm.Response{Text: "bad \xff text", PromptTokens: -4}, nil
		}
		return llm.Response{Text: "ok"}, nil
	}}
	l := newLedger(10)
	b := llm.NewBroker(llm.Options{Upstream: up, Ledger: l})
	defer b.Close()
	c := call(prompts(4)...)
	got, err := b.Query(t.Context(), c)
	check(t, err)
	want := []protocol.Completion{
		{Text: "ok"},
		{Error: protocol.Errorf(protocol.CodeModelFailed, "connection reset")},
		{Error: protocol.Errorf(protocol.CodeModelFailed, "no choice"), PromptTokens: 5},
		{Text: "bad \uFFFD text"},
	}
	if d := cmp.Diff(want, got.Completions); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	wantUsage := []llm.Usage{{Sent: true, Answered: true}, {Sent: true}, {Sent: true, Answered: true, PromptTokens: 5, CostMicroUSD: 1}, {Sent: true, Answered: true}}
	if d := cmp.Diff(wantUsage, l.settled[c.Key]); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := &upstream{answer: func(ctx context.Context, req llm.Request) (llm.Response, error) {
			<-ctx.Done()
			return llm.Response{}, ctx.Err()
		}}
		l := newLedger(10)
		b := llm.NewBroker(llm.Options{Upstream: up, Ledger: l, Timeout: time.Minute})
		defer b.Close()
		c := call("p")
		got, err := b.Query(t.Context(), c)
		check(t, err)
		code(t, got.Completions[0].Error, protocol.CodeTimeout)
		if d := cmp.Diff([]llm.Usage{{Sent: true}}, l.settled[c.Key]); d != "" {
			t.Errorf("usage (-want +got):\n%s", d)
		}
	})
}

// TestCancel: what was not sent is not charged, what was sent is settled.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cause error
		want  protocol.Code
	}{
		{nil, protocol.CodeCancelled},
		{protocol.Errorf(protocol.CodeInterruptedByFork, "the copy gets no answer"), protocol.CodeInterruptedByFork},
	} {
		synctest.Test(t, func(t *testing.T) {
			up := &upstream{answer: func(ctx context.Context, req llm.Request) (llm.Response, error) {
				<-ctx.Done()
				return llm.Response{}, ctx.Err()
			}}
			l := newLedger(10)
			b := llm.NewBroker(llm.Options{Upstream: up, Ledger: l, Concurrency: 2})
			defer b.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			c := call(prompts(5)...)
			var err error
			var wg sync.WaitGroup
			wg.Go(func() { _, err = b.Query(ctx, c) })
			synctest.Wait()
			cancel(tc.cause)
			wg.Wait()
			code(t, err, tc.want)
			if d := cmp.Diff([]llm.Usage{{Sent: true}, {Sent: true}, {}, {}, {}}, l.settled[c.Key]); d != "" {
				t.Errorf("usage (-want +got):\n%s", d)
			}
			if l.limit != 8 || up.count() != 2 {
				t.Errorf("left %d, sent %d; want 8, 2", l.limit, up.count())
			}
		})
	}
}

func TestSettleFails(t *testing.T) {
	t.Parallel()
	l := newLedger(10)
	l.failNext = errors.New("journal")
	b := llm.NewBroker(llm.Options{Upstream: llm.Echo{}, Ledger: l})
	defer b.Close()
	if _, err := b.Query(t.Context(), call("p")); !errors.Is(err, l.failNext) {
		t.Errorf("got %v, want the ledger's error", err)
	}
}

// TestQueue: more than the queue is refused, a single call is not; a large
// batch lets others in between.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := &upstream{answer: func(context.Context, llm.Request) (llm.Response, error) {
			time.Sleep(time.Second)
			return llm.Response{}, nil
		}}
		b := llm.NewBroker(llm.Options{Upstream: up, Concurrency: 1, Queue: 11})
		defer b.Close()
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() { _, err := b.Query(t.Context(), call(prompts(10)...)); check(t, err) })
		synctest.Wait()
		var single time.Duration
		wg.Go(func() { _, err := b.Query(t.Context(), call("single")); check(t, err); single = time.Since(start) })
		synctest.Wait()
		_, err := b.Query(t.Context(), call("one too many"))
		code(t, err, protocol.CodeBusy)
		wg.Wait()
		if single > 3*time.Second {
			t.Errorf("the single prompt waited %s behind the batch", single)
		}
		_, err = b.Query(t.Context(), call(prompts(12)...)) // larger than the queue, alone
		check(t, err)
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := &upstream{answer: func(ctx context.Context, _ llm.Request) (llm.Response, error) {
			<-ctx.Done()
			return llm.Response{}, ctx.Err()
		}}
		l := newLedger(10)
		b := llm.NewBroker(llm.Options{Upstream: up, Ledger: l})
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { _, err = b.Query(t.Context(), call("p")) })
		synctest.Wait()
		check(t, b.Close())
		if len(l.settled) != 1 {
			t.Error("Close returned before the call was settled")
		}
		wg.Wait()
		code(t, err, protocol.CodeUnavailable)
		_, err = b.Query(t.Context(), call("p"))
		code(t, err, protocol.CodeUnavailable)
		check(t, b.Close())
	})
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 15<<20)
	up := &upstream{answer: func(_ context.Context, req llm.Request) (llm.Response, error) {
		if req.Prompt == "prompt 0" {
			return llm.Response{Text: text + text, PromptTokens: 1}, nil
		}
		return llm.Response{Text: text}, nil
	}}
	b := llm.NewBroker(llm.Options{Upstream: up})
	defer b.Close()
	got, err := b.Query(t.Context(), call(prompts(6)...))
	check(t, err)
	total := 0
	for i, c := range got.Completions {
		total += len(c.Text)
		if tooLarge := c.Error != nil && c.Error.Code == protocol.CodeTooLarge; tooLarge != (i == 0 || i == 5) {
			t.Errorf("completion %d: error %v", i, c.Error)
		}
	}
	if total > protocol.MaxMessage {
		t.Errorf("%d bytes of answers", total)
	}
	if got.Completions[0].PromptTokens != 1 {
		t.Error("the tokens of an answer that is too large are not counted")
	}
}
