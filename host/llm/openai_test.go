package llm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/llm"
	"github.com/ratoon-project/ratoon/protocol"
)

const canary = "sk-canary-0123456789"

// server is a chat completions server that counts.
type server struct {
	*httptest.Server
	requests atomic.Int64
	auth     atomic.Value // of the last request
	body     atomic.Value
}

func serve(t *testing.T, status int, answer string) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		s.auth.Store(r.Header.Get("Authorization"))
		body, _ := io.ReadAll(r.Body)
		s.body.Store(string(body))
		if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" {
			http.Error(w, "wrong request "+r.Method+" "+r.URL.Path, http.StatusTeapot)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s
}

// dial makes a client with its own connections, closed at the end.
func dial(t *testing.T, opt llm.OpenAIOptions) *llm.OpenAI {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	opt.Client = &http.Client{Transport: transport}
	o, err := llm.NewOpenAI(opt)
	check(t, err)
	return o
}

const answer = `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",
"message":{"role":"assistant","content":"four"}}],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9%s}}`

func TestOpenAI(t *testing.T) {
	t.Parallel()
	s := serve(t, 200, fmt.Sprintf(answer, ""))
	o := dial(t, llm.OpenAIOptions{BaseURL: s.URL + "/v1", Key: llm.NewSecret(canary), Model: "small",
		Prices: map[string]llm.Price{"small": {Prompt: 2_500_000, Completion: 10_000_000}}})
	got, err := o.Complete(t.Context(), llm.Request{Prompt: "2+2?"})
	check(t, err)
	if d := cmp.Diff(llm.Response{Text: "four", PromptTokens: 7, CompletionTokens: 2, CostMicroUSD: 18 + 20}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if s.auth.Load() != "Bearer "+canary {
		t.Errorf("Authorization: %q", s.auth.Load())
	}
	var body struct {
		Model    string
		Messages []struct{ Role, Content string }
	}
	check(t, json.Unmarshal([]byte(s.body.Load().(string)), &body))
	if body.Model != "small" || len(body.Messages) != 1 || body.Messages[0].Role != "user" || body.Messages[0].Content != "2+2?" {
		t.Errorf("sent %+v", body)
	}
	_, err = o.Complete(t.Context(), llm.Request{Model: "large", Prompt: "p"})
	check(t, err)
	check(t, json.Unmarshal([]byte(s.body.Load().(string)), &body))
	if body.Model != "large" {
		t.Errorf("model %q, want the request's", body.Model)
	}
}

func TestOpenAIStatedCost(t *testing.T) {
	t.Parallel()
	for stated, want := range map[string]int64{`,"cost":0.00012345`: 124, `,"cost":"x"`: 0, `,"cost":-1`: 0, ``: 0} {
		s := serve(t, 200, fmt.Sprintf(answer, stated))
		got, err := dial(t, llm.OpenAIOptions{BaseURL: s.URL + "/v1", Model: "m"}).Complete(t.Context(), llm.Request{Prompt: "p"})
		check(t, err)
		if got.CostMicroUSD != want {
			t.Errorf("cost %q: %d, want %d", stated, got.CostMicroUSD, want)
		}
	}
}

// TestOpenAIFails: each failure is typed, is sent once, and hides the key.
func TestOpenAIFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
		says   string
	}{
		"unauthorized": {401, `{"error":{"message":"Incorrect API key provided: ` + canary + `","type":"invalid_request_error","code":"invalid_api_key"}}`, "Incorrect API key"},
		"rate limit":   {429, `{"error":{"message":"slow down","type":"requests","code":"rate_limit"}}`, "slow down"},
		"server error": {503, `{"error":{"message":"overloaded","type":"server_error"}}`, "overloaded"},
		"no JSON":      {500, `<html>`, "500"},
		"no choice":    {200, `{"choices":[],"usage":{"prompt_tokens":1}}`, "no choice"},
		"refusal":      {200, `{"choices":[{"message":{"role":"assistant","refusal":"I will not"}}]}`, "I will not"},
		"garbage":      {200, `{"choices":`, "model m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tc.status, tc.body)
			l := newLedger(10)
			b := llm.NewBroker(llm.Options{Upstream: dial(t, llm.OpenAIOptions{BaseURL: s.URL + "/v1/", Key: llm.NewSecret(canary), Model: "m"}), Ledger: l})
			defer b.Close()
			c := call("p")
			got, err := b.Query(t.Context(), c)
			check(t, err)
			e := code(t, got.Completions[0].Error, protocol.CodeModelFailed)
			if !strings.Contains(e.Message, tc.says) || strings.Contains(e.Message, canary) {
				t.Errorf("message %q, want %q and no key", e.Message, tc.says)
			}
			if n := s.requests.Load(); n != 1 {
				t.Errorf("%d requests, want 1: what is sent again may be billed again", n)
			}
			if u := l.settled[c.Key]; len(u) != 1 || !u[0].Sent {
				t.Errorf("usage %+v", u)
			}
		})
	}
}

func TestOpenAIUnreachable(t *testing.T) {
	t.Parallel()
	s := serve(t, 200, "")
	s.Close()
	_, err := dial(t, llm.OpenAIOptions{BaseURL: s.URL + "/v1/", Model: "m"}).Complete(t.Context(), llm.Request{Prompt: "p"})
	code(t, err, protocol.CodeModelFailed)
}

func TestOpenAICancelled(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := dial(t, llm.OpenAIOptions{BaseURL: s.URL + "/v1/", Model: "m"}).Complete(ctx, llm.Request{Prompt: "p"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestOpenAIEndlessAnswer: a server cannot make the host buffer without end.
func TestOpenAIEndlessAnswer(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[{"message":{"content":"`)
		piece := bytes.Repeat([]byte("x"), 1<<20)
		for r.Context().Err() == nil {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	_, err := dial(t, llm.OpenAIOptions{BaseURL: s.URL + "/v1/", Model: "m"}).Complete(t.Context(), llm.Request{Prompt: "p"})
	if e := code(t, err, protocol.CodeModelFailed); !strings.Contains(e.Message, "longer than") {
		t.Errorf("got %v", e)
	}
}

func TestSecret(t *testing.T) {
	t.Parallel()
	s := llm.NewSecret(canary)
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("x", "key", s, "options", llm.OpenAIOptions{Key: s})
	}
	out := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p"} {
		out += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, &s) + fmt.Sprintf(verb, llm.OpenAIOptions{Key: s})
	}
	enc, err := json.Marshal(map[string]any{"key": s})
	check(t, err)
	out += string(enc) + s.String()
	if strings.Contains(out, "canary") || strings.Contains(out, fmt.Sprintf("%x", canary)) {
		t.Errorf("the secret is shown: %s", out)
	}
	if s.Reveal() != canary || s.IsZero() {
		t.Error("the secret is lost")
	}
}
