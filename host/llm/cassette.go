package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// take is one line of a cassette.
type take struct {
	Model            string `json:"model,omitempty"`
	Prompt           string `json:"prompt"`
	Text             string `json:"text,omitempty"`
	PromptTokens     int64  `json:"prompt_tokens,omitempty"`
	CompletionTokens int64  `json:"completion_tokens,omitempty"`
	CostMicroUSD     int64  `json:"cost_micro_usd,omitempty"`
	// Error makes the prompt fail with this message.
	Error string `json:"error,omitempty"`
	// Repeat is how often the line answers: 0 and 1 once, -1 always.
	Repeat int `json:"repeat,omitempty"`
}

func (t *take) check() error {
	if t.Repeat < -1 {
		return fmt.Errorf("repeat %d: want -1 (always) or a count", t.Repeat)
	}
	if t.PromptTokens < 0 || t.CompletionTokens < 0 || t.CostMicroUSD < 0 {
		return errors.New("a count is negative")
	}
	if t.Repeat == 0 {
		t.Repeat = 1
	}
	return nil
}

// question is what a take answers.
type question struct{ model, prompt string }

// Cassette replays recorded answers. A prompt is answered by the lines with
// exactly its model (as asked, so empty for the default) and prompt, in the
// file's order.
type Cassette struct {
	path string

	mu    sync.Mutex
	takes map[question][]take
}

var (
	_ Upstream = (*Cassette)(nil)
	_ ordered  = (*Cassette)(nil)
)

// OpenCassette reads a cassette for replay.
func OpenCassette(path string) (*Cassette, error) {
	list, err := readLines(path, (*take).check)
	if err != nil {
		return nil, err
	}
	c := &Cassette{path: path, takes: map[question][]take{}}
	for _, t := range list {
		q := question{t.Model, t.Prompt}
		c.takes[q] = append(c.takes[q], t)
	}
	return c, nil
}

// Ordered: equal prompts are answered one line after another.
func (c *Cassette) Ordered() {}

// Complete replays the next answer. A prompt without one is CodeModelFailed,
// naming the cassette.
func (c *Cassette) Complete(ctx context.Context, req Request) (Response, error) {
	if err := context.Cause(ctx); err != nil {
		return Response{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q := question{req.Model, req.Prompt}
	left, known := c.takes[q]
	if len(left) == 0 {
		why := "has no answer for"
		if known {
			why = "has no further answer for"
		}
		return Response{}, protocol.Errorf(protocol.CodeModelFailed, "cassette %s %s model %q, prompt %q",
			c.path, why, req.Model, excerpt(req.Prompt)).With("cassette", c.path)
	}
	t := left[0]
	switch {
	case t.Repeat > 1:
		left[0].Repeat--
	case t.Repeat == 1:
		c.takes[q] = left[1:]
	}
	if t.Error != "" {
		return Response{}, protocol.Errorf(protocol.CodeModelFailed, "%s", t.Error)
	}
	return Response{t.Text, t.PromptTokens, t.CompletionTokens, t.CostMicroUSD}, nil
}

func excerpt(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}

// Recorder appends what another upstream answers to a cassette. Failures are
// passed on and not recorded.
type Recorder struct {
	upstream Upstream

	mu   sync.Mutex
	file *os.File
}

var _ Upstream = (*Recorder)(nil)

// NewRecorder opens or makes a cassette and cuts a torn last line, which the
// next one would otherwise continue.
func NewRecorder(path string, upstream Upstream) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "open cassette %s: %v", path, err)
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = f.Truncate(int64(bytes.LastIndexByte(data, '\n') + 1))
	}
	if err != nil {
		return nil, errors.Join(protocol.Errorf(protocol.CodeInvalidArgument, "open cassette %s: %v", path, err), f.Close())
	}
	return &Recorder{upstream: upstream, file: f}, nil
}

// Complete asks the upstream and records its answer. An answer that cannot be
// recorded is an error, with the response, which was paid for.
func (r *Recorder) Complete(ctx context.Context, req Request) (Response, error) {
	resp, err := r.upstream.Complete(ctx, req)
	if err != nil {
		return resp, err
	}
	line, err := json.Marshal(take{
		Model: req.Model, Prompt: req.Prompt, Text: resp.Text, PromptTokens: resp.PromptTokens,
		CompletionTokens: resp.CompletionTokens, CostMicroUSD: resp.CostMicroUSD,
	})
	if err != nil {
		return resp, fmt.Errorf("encode cassette line: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.file.Write(append(line, '\n')); err != nil {
		return resp, fmt.Errorf("write cassette: %w", err)
	}
	return resp, nil
}

// Close closes the cassette, and the upstream if it can be closed.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(closeUpstream(r.upstream), r.file.Close())
}
