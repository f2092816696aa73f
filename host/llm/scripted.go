package llm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// rule is one line of a script.
type rule struct {
	// Match is a regular expression that the prompt must match.
	Match string `json:"match"`
	// Model restricts the rule to requests that name it.
	Model string `json:"model,omitempty"`
	// Answer may hold $1 or ${name} for groups of Match; $$ is a dollar.
	Answer string `json:"answer,omitempty"`
	// Error makes the prompt fail with this message.
	Error string `json:"error,omitempty"`
	// Delay is how long the model "thinks", as Go writes durations: "200ms".
	Delay string `json:"delay,omitempty"`

	pattern *regexp.Regexp
	delay   time.Duration
}

func (r *rule) check() (err error) {
	if r.pattern, err = regexp.Compile(r.Match); err != nil {
		return fmt.Errorf("match: %w", err)
	}
	if r.Delay != "" {
		if r.delay, err = time.ParseDuration(r.Delay); err != nil {
			return fmt.Errorf("delay: %w", err)
		}
	}
	if r.Answer != "" && r.Error != "" {
		return errors.New("want answer or error, not both")
	}
	return nil
}

// Scripted answers by rules: the first whose expression matches. A token is a
// word.
type Scripted struct {
	path  string
	rules []rule
}

var _ Upstream = (*Scripted)(nil)

// OpenScripted reads a file of rules, one JSON object a line:
//
//	{"match": "capital of (?P<land>\\w+)", "answer": "Look up ${land}.", "delay": "200ms"}
func OpenScripted(path string) (*Scripted, error) {
	rules, err := readLines(path, (*rule).check)
	if err != nil {
		return nil, err
	}
	return &Scripted{path: path, rules: rules}, nil
}

// Complete answers by the first rule that matches; without one it is
// CodeModelFailed, naming the file.
func (s *Scripted) Complete(ctx context.Context, req Request) (Response, error) {
	for _, r := range s.rules {
		if r.Model != "" && r.Model != req.Model {
			continue
		}
		match := r.pattern.FindStringSubmatchIndex(req.Prompt)
		if match == nil {
			continue
		}
		if err := sleep(ctx, r.delay); err != nil {
			return Response{}, err
		}
		if r.Error != "" {
			return Response{}, protocol.Errorf(protocol.CodeModelFailed, "%s", r.Error)
		}
		text := string(r.pattern.ExpandString(nil, r.Answer, req.Prompt, match))
		return Response{Text: text, PromptTokens: words(req.Prompt), CompletionTokens: words(text)}, nil
	}
	return Response{}, protocol.Errorf(protocol.CodeModelFailed, "script %s has no rule for model %q, prompt %q",
		s.path, req.Model, excerpt(req.Prompt)).With("script", s.path)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return context.Cause(ctx)
	}
}
