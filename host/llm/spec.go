package llm

import (
	"os"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// Environment variables that ParseSpec reads.
const (
	EnvBaseURL       = "RATOON_LLM_BASE_URL"
	EnvKey           = "RATOON_LLM_API_KEY"
	EnvPrices        = "RATOON_LLM_PRICES" // see ParsePrices
	EnvOpenAIBaseURL = "OPENAI_BASE_URL"
	EnvOpenAIKey     = "OPENAI_API_KEY"
)

// SpecHelp describes what ParseSpec takes, for a command's help.
const SpecHelp = "openai:MODEL, echo, cassette:FILE, scripted:FILE or record:FILE,SPEC"

// ParseSpec makes the upstream that `--llm SPEC` names:
//
//	openai:MODEL      a server with OpenAI's interface; MODEL is for calls that name none
//	echo              answers each prompt with itself
//	cassette:FILE     replays recorded answers
//	scripted:FILE     answers by rules
//	record:FILE,SPEC  asks SPEC and appends its answers to a cassette
//
// getenv is where variables come from; nil: os.Getenv. The key in
// OPENAI_API_KEY is sent to the server of OPENAI_BASE_URL or OpenAI's own
// only; one named by RATOON_LLM_BASE_URL gets RATOON_LLM_API_KEY or none.
func ParseSpec(spec string, getenv func(string) string) (Upstream, error) {
	if getenv == nil {
		getenv = os.Getenv
	}
	kind, rest, _ := strings.Cut(spec, ":")
	switch {
	case kind == "openai":
		return openAIFromEnv(rest, getenv)
	case spec == "echo":
		return Echo{}, nil
	case kind == "cassette" && rest != "":
		return OpenCassette(rest)
	case kind == "scripted" && rest != "":
		return OpenScripted(rest)
	case kind == "record":
		file, inner, ok := strings.Cut(rest, ",")
		if !ok || file == "" {
			break
		}
		upstream, err := ParseSpec(inner, getenv)
		if err != nil {
			return nil, err
		}
		return NewRecorder(file, upstream)
	}
	return nil, protocol.Errorf(protocol.CodeInvalidArgument, "model %q: want %s", spec, SpecHelp)
}

func openAIFromEnv(model string, getenv func(string) string) (Upstream, error) {
	opt := OpenAIOptions{BaseURL: getenv(EnvBaseURL), Key: NewSecret(getenv(EnvKey)), Model: model}
	if opt.BaseURL == "" {
		opt.BaseURL = getenv(EnvOpenAIBaseURL)
		if opt.Key.IsZero() {
			opt.Key = NewSecret(getenv(EnvOpenAIKey))
		}
	}
	prices, err := ParsePrices(getenv(EnvPrices))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%s: %v", EnvPrices, err)
	}
	opt.Prices = prices
	return NewOpenAI(opt)
}
