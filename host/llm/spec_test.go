package llm_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/llm"
	"github.com/ratoon-project/ratoon/protocol"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestParseSpec(t *testing.T) {
	t.Parallel()
	tape, rules := file(t, `{"prompt":"p","text":"x"}`), file(t, `{"match":"p","answer":"x"}`)
	key := env(llm.EnvKey, canary)
	for spec, want := range map[string]string{
		"echo": "llm.Echo", "cassette:" + tape: "*llm.Cassette", "scripted:" + rules: "*llm.Scripted",
		"openai:m": "*llm.OpenAI", "openai": "*llm.OpenAI", "openai:org/m:free": "*llm.OpenAI",
		"record:" + filepath.Join(t.TempDir(), "r") + ",cassette:" + tape: "*llm.Recorder",
	} {
		u, err := llm.ParseSpec(spec, key)
		if err != nil || fmt.Sprintf("%T", u) != want {
			t.Errorf("%s: %T, %v; want %s", spec, u, err, want)
		}
		check(t, llm.NewBroker(llm.Options{Upstream: u}).Close())
	}
	for _, spec := range []string{"", "gpt", "echo:x", "cassette:", "cassette", "scripted:", "record:f", "record:,echo", "record:f,", "Echo"} {
		if _, err := llm.ParseSpec(spec, key); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%q: %v, want invalid_argument", spec, err)
		}
	}
	_, err := llm.ParseSpec("openai:m", env())
	code(t, err, protocol.CodeNoModel)
	_, err = llm.ParseSpec("openai:m", env(llm.EnvKey, "k", llm.EnvBaseURL, "ftp://x"))
	code(t, err, protocol.CodeInvalidArgument)
	_, err = llm.ParseSpec("openai:m", env(llm.EnvKey, "k", llm.EnvPrices, "m=1"))
	code(t, err, protocol.CodeInvalidArgument)
}

// TestSpecKey: a key goes to the server it belongs to.
func TestSpecKey(t *testing.T) {
	t.Parallel()
	s := serve(t, 200, fmt.Sprintf(answer, ""))
	for _, tc := range []struct {
		env  []string
		auth string
	}{
		{[]string{llm.EnvBaseURL, s.URL + "/v1", llm.EnvKey, "mine"}, "Bearer mine"},
		{[]string{llm.EnvBaseURL, s.URL + "/v1", llm.EnvOpenAIKey, canary}, ""},
		{[]string{llm.EnvOpenAIBaseURL, s.URL + "/v1", llm.EnvOpenAIKey, canary}, "Bearer " + canary},
		{[]string{llm.EnvOpenAIBaseURL, s.URL + "/v1", llm.EnvOpenAIKey, canary, llm.EnvKey, "mine"}, "Bearer mine"},
	} {
		u, err := llm.ParseSpec("openai:m", env(tc.env...))
		check(t, err)
		_, err = u.Complete(t.Context(), llm.Request{Prompt: "p"})
		check(t, err)
		if got := s.auth.Load(); got != tc.auth {
			t.Errorf("%v: Authorization %q, want %q", tc.env, got, tc.auth)
		}
	}
	s.CloseClientConnections()
}

func TestPrices(t *testing.T) {
	t.Parallel()
	got, err := llm.ParsePrices("a=2.50/10, b=0/0.1,")
	check(t, err)
	if d := cmp.Diff(map[string]llm.Price{"a": {Prompt: 2_500_000, Completion: 10_000_000}, "b": {Completion: 100_000}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, bad := range []string{"a", "a=1", "a=x/1", "a=-1/1", "a=1/NaN", "a=1/1e9", "=1/1", "a=1/Inf"} {
		if p, err := llm.ParsePrices(bad); err == nil {
			t.Errorf("%q: %v, want an error", bad, p)
		}
	}
	p := llm.Price{Prompt: 1, Completion: 1_000_000_000}
	for _, tc := range [][3]int64{{0, 0, 0}, {1, 0, 1}, {1_000_001, 1, 2 + 1000}, {-5, -5, 0}, {1 << 62, 1 << 62, 4295 + 4294967296000}} {
		if got := p.Cost(tc[0], tc[1]); got != tc[2] {
			t.Errorf("Cost(%d, %d) = %d, want %d", tc[0], tc[1], got, tc[2])
		}
	}
}
