package integration_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

// upstream is a server with OpenAI's interface that counts what it is asked.
// It holds the prompt "hold" until "release" arrives, and answers "time" with
// the host's.
type upstream struct {
	*httptest.Server
	held, released chan struct{}
	hold, release  sync.Once

	mu      sync.Mutex // guards what follows
	asked   map[string]int
	changed chan struct{}
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{held: make(chan struct{}), released: make(chan struct{}), asked: map[string]int{}, changed: make(chan struct{})}
	u.Server = httptest.NewServer(u)
	t.Cleanup(func() {
		u.letGo()
		u.Close()
	})
	return u
}

// options let a run use the server.
func (u *upstream) options() options {
	return options{flags: []string{"--llm", "openai:default"}, env: []string{"RATOON_LLM_BASE_URL=" + u.URL, "RATOON_LLM_API_KEY=secret"}}
}

// total is how many prompts were asked.
func (u *upstream) total() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := 0
	for _, k := range u.asked {
		n += k
	}
	return n
}

func (u *upstream) count(prompt string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[prompt]
}

// awaitHeld waits until n prompts are held.
func (u *upstream) awaitHeld(t *testing.T, n int, done <-chan struct{}) {
	t.Helper()
	for {
		u.mu.Lock()
		held, changed := u.asked["hold"], u.changed
		u.mu.Unlock()
		if held >= n {
			return
		}
		select {
		case <-changed:
		case <-done:
			t.Fatalf("the run ended after %d of %d prompts", held, n)
		}
	}
}

// letGo answers what is held.
func (u *upstream) letGo() { u.release.Do(func() { close(u.released) }) }

// ServeHTTP answers "MODEL: PROMPT".
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Model    string
		Messages []struct{ Content string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Messages) != 1 {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	prompt := body.Messages[0].Content
	u.mu.Lock()
	u.asked[prompt]++
	close(u.changed)
	u.changed = make(chan struct{})
	u.mu.Unlock()
	answer := prompt
	switch prompt {
	case "time":
		answer = strconv.FormatInt(time.Now().UnixNano(), 10)
	case "fail":
		http.Error(w, `{"error":{"message":"no"}}`, http.StatusBadRequest)
		return
	case "hold":
		u.hold.Do(func() { close(u.held) })
		<-u.released
	case "await hold":
		<-u.held
	case "release":
		u.letGo()
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{
		"id": "x", "object": "chat.completion", "model": body.Model,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": body.Model + ": " + answer}}},
		"usage":   map[string]any{"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.25},
	})
}
