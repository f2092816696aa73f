package llm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/llm"
	"github.com/ratoon-project/ratoon/protocol"
)

func file(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.jsonl")
	check(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// ask returns the text, or the code of the error.
func ask(t *testing.T, u llm.Upstream, model, prompt string) string {
	t.Helper()
	r, err := u.Complete(t.Context(), llm.Request{Model: model, Prompt: prompt})
	if err != nil {
		return string(protocol.CodeOf(err))
	}
	return r.Text
}

func TestCassette(t *testing.T) {
	t.Parallel()
	path := file(t, `{"prompt":"p","text":"one","prompt_tokens":1,"completion_tokens":2,"cost_micro_usd":3}`, ``,
		`{"prompt":"p","text":"two","repeat":2}`, `{"model":"m","prompt":"p","text":"of m","repeat":-1}`, `{"prompt":"e","error":"overloaded"}`)
	c, err := llm.OpenCassette(path)
	check(t, err)
	r, err := c.Complete(t.Context(), llm.Request{Prompt: "p"})
	check(t, err)
	if d := cmp.Diff(llm.Response{Text: "one", PromptTokens: 1, CompletionTokens: 2, CostMicroUSD: 3}, r); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for i, want := range []string{"two", "two", "model_failed"} {
		if got := ask(t, c, "", "p"); got != want {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
	}
	for range 5 {
		if got := ask(t, c, "m", "p"); got != "of m" {
			t.Errorf("got %q", got)
		}
	}
	for prompt, says := range map[string]string{"p": "no further answer", "P": "no answer", "e": "overloaded"} {
		_, err := c.Complete(t.Context(), llm.Request{Prompt: prompt})
		e := code(t, err, protocol.CodeModelFailed)
		if !strings.Contains(e.Message, says) {
			t.Errorf("%q: %q, want %q", prompt, e.Message, says)
		}
		if prompt != "e" && (!strings.Contains(e.Message, path) || e.Details["cassette"] != path) {
			t.Errorf("does not name the cassette: %v", e)
		}
	}
}

// TestCassetteBatch: equal prompts of one batch get the lines in order.
func TestCassetteBatch(t *testing.T) {
	t.Parallel()
	var lines, want []string
	for i := range 50 {
		lines = append(lines, fmt.Sprintf(`{"prompt":"same","text":"%d"}`, i))
		want = append(want, fmt.Sprint(i))
	}
	c, err := llm.OpenCassette(file(t, lines...))
	check(t, err)
	b := llm.NewBroker(llm.Options{Upstream: c})
	defer b.Close()
	args := make([]string, 50)
	for i := range args {
		args[i] = "same"
	}
	r, err := b.Query(t.Context(), call(args...))
	check(t, err)
	var got []string
	for _, c := range r.Completions {
		got = append(got, c.Text)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestFilesRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		open func(string) error
		line string
	}{
		{cassette, `{"prompt":"p"`}, {cassette, `{"prompt":"p","answer":"x"}`}, {cassette, `{"prompt":"p","repeat":-2}`},
		{cassette, `{"prompt":"p","prompt_tokens":-1}`}, {cassette, `{"prompt":"p"} {"prompt":"q"}`},
		{scripted, `{"match":"(","answer":"x"}`}, {scripted, `{"match":"x","delay":"soon"}`}, {scripted, `{"match":"x","answer":"a","error":"b"}`},
	} {
		path := file(t, `{}`, tc.line)
		if tc.open(path) == nil {
			t.Errorf("%s: accepted", tc.line)
			continue
		}
		e := code(t, tc.open(path), protocol.CodeInvalidArgument)
		if !strings.Contains(e.Message, path+", line 2") {
			t.Errorf("%s: %q does not name file and line", tc.line, e.Message)
		}
	}
	code(t, cassette(filepath.Join(t.TempDir(), "none")), protocol.CodeNotFound)
}

func cassette(path string) error { _, err := llm.OpenCassette(path); return err }
func scripted(path string) error { _, err := llm.OpenScripted(path); return err }

// TestRecordReplay: what was recorded replays the same, also over a torn end.
func TestRecordReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		type exchange struct {
			req  llm.Request
			resp llm.Response
		}
		var made []exchange
		up := &upstream{answer: func(context.Context, llm.Request) (llm.Response, error) { return made[len(made)-1].resp, nil }}
		text := rapid.String()
		record := func() {
			r, err := llm.NewRecorder(path, up)
			if err != nil {
				t.Fatal(err)
			}
			for range rapid.IntRange(0, 5).Draw(t, "n") {
				made = append(made, exchange{
					llm.Request{Model: rapid.SampledFrom([]string{"", "m"}).Draw(t, "model"), Prompt: rapid.OneOf(rapid.Just("same"), text).Draw(t, "prompt")},
					llm.Response{Text: text.Draw(t, "text"), PromptTokens: rapid.Int64Range(0, 1e9).Draw(t, "tokens")},
				})
				if _, err := r.Complete(context.Background(), made[len(made)-1].req); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		record()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"prompt":"torn`)
		f.Close()
		record()
		c, err := llm.OpenCassette(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range made {
			got, err := c.Complete(context.Background(), e.req)
			if err != nil || got != e.resp {
				t.Fatalf("exchange %d: %+v, %v; want %+v", i, got, err, e.resp)
			}
		}
	})
}

func TestRecorderPassesFailures(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c")
	inner, err := llm.OpenCassette(file(t, `{"prompt":"p","text":"x"}`))
	check(t, err)
	r, err := llm.NewRecorder(path, inner)
	check(t, err)
	b := llm.NewBroker(llm.Options{Upstream: r})
	_, err = b.Query(t.Context(), call("p", "unknown"))
	check(t, err)
	check(t, b.Close()) // closes the recorder
	if _, err := r.Complete(t.Context(), llm.Request{Prompt: "p"}); err == nil {
		t.Error("the recorder is still open")
	}
	c, err := llm.OpenCassette(path)
	check(t, err)
	if got := ask(t, c, "", "p") + " " + ask(t, c, "", "unknown"); got != "x model_failed" {
		t.Errorf("got %q", got)
	}
}

func TestScripted(t *testing.T) {
	t.Parallel()
	path := file(t, `{"match":"^capital of (?P<land>\\w+)\\?$","answer":"Look up ${land} ($1) for $$1."}`,
		`{"match":"secret","error":"I cannot"}`, `{"match":".","model":"m","answer":"m says"}`, `{"match":"slow","delay":"1h","answer":"at last"}`)
	s, err := llm.OpenScripted(path)
	check(t, err)
	for _, tc := range [][3]string{
		{"", "capital of France?", "Look up France (France) for $1."},
		{"", "a secret", "model_failed"},
		{"m", "anything", "m says"},
		{"", "anything", "model_failed"},
	} {
		if got := ask(t, s, tc[0], tc[1]); got != tc[2] {
			t.Errorf("%q %q: %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
	_, err = s.Complete(t.Context(), llm.Request{Prompt: "anything"})
	if e := code(t, err, protocol.CodeModelFailed); !strings.Contains(e.Message, path) {
		t.Errorf("does not name the script: %v", e)
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if got := ask(t, s, "", "slow"); got != "at last" || time.Since(start) != time.Hour {
			t.Errorf("%q after %s", got, time.Since(start))
		}
	})
}

func TestEcho(t *testing.T) {
	t.Parallel()
	got, err := llm.Echo{}.Complete(t.Context(), llm.Request{Prompt: "two  words\n"})
	check(t, err)
	if d := cmp.Diff(llm.Response{Text: "two  words\n", PromptTokens: 2, CompletionTokens: 2}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
