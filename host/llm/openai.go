package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/ratoon-project/ratoon/protocol"
)

// DefaultBaseURL is OpenAI's own server.
const DefaultBaseURL = "https://api.openai.com/v1/"

// maxReply bounds the body of a server's answer: a text of MaxPayload whose
// every byte is escaped, and its wrapping.
const maxReply = 7 * protocol.MaxPayload

// OpenAIOptions of NewOpenAI.
type OpenAIOptions struct {
	BaseURL string // empty: DefaultBaseURL
	Key     Secret // zero: no Authorization header is sent
	Model   string // for requests that name none
	// Retries is how often a request is sent again that the server refused
	// or did not answer. 0, the default, is exact: what is sent again may be
	// billed again.
	Retries int
	// Prices by model, for Response.CostMicroUSD. Without one the cost is
	// what the server states as usage.cost in US dollars, as OpenRouter does.
	Prices map[string]Price
	// Client sends the requests; nil: http.DefaultTransport.
	Client *http.Client
}

// OpenAI asks a server with OpenAI's chat completions interface.
type OpenAI struct {
	opt   OpenAIOptions
	chats openai.ChatCompletionService
}

var _ Upstream = (*OpenAI)(nil)

// NewOpenAI checks the options; it does no I/O.
func NewOpenAI(opt OpenAIOptions) (*OpenAI, error) {
	if opt.BaseURL == "" {
		opt.BaseURL = DefaultBaseURL
	}
	u, err := url.Parse(opt.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "model server %q is not an http or https URL", opt.BaseURL)
	}
	if opt.Key.IsZero() && opt.BaseURL == DefaultBaseURL {
		return nil, protocol.Errorf(protocol.CodeNoModel, "no key for %s: set %s or %s", DefaultBaseURL, EnvKey, EnvOpenAIKey)
	}
	client := opt.Client
	if client == nil {
		client = &http.Client{}
	}
	bounded := *client
	bounded.Transport = boundedTransport{client.Transport}
	// The service is made directly: openai.NewClient would add keys and
	// headers from OPENAI_* variables to whatever server BaseURL names.
	options := []option.RequestOption{
		option.WithBaseURL(strings.TrimSuffix(opt.BaseURL, "/") + "/"),
		option.WithHTTPClient(&bounded),
		option.WithMaxRetries(max(opt.Retries, 0)),
	}
	if !opt.Key.IsZero() {
		options = append(options, option.WithAPIKey(opt.Key.Reveal()))
	}
	return &OpenAI{opt: opt, chats: openai.NewChatCompletionService(options...)}, nil
}

// Complete sends one user message.
func (o *OpenAI) Complete(ctx context.Context, req Request) (Response, error) {
	model := req.Model
	if model == "" {
		model = o.opt.Model
	}
	if model == "" {
		return Response{}, protocol.Errorf(protocol.CodeInvalidArgument, "no model named, and no default: use --llm openai:MODEL")
	}
	chat, err := o.chats.New(ctx, openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(req.Prompt)},
	})
	if err != nil {
		return Response{}, o.failed(model, err)
	}
	resp := Response{
		PromptTokens:     clampTokens(chat.Usage.PromptTokens),
		CompletionTokens: clampTokens(chat.Usage.CompletionTokens),
	}
	if price, ok := o.opt.Prices[model]; ok {
		resp.CostMicroUSD = price.Cost(resp.PromptTokens, resp.CompletionTokens)
	} else {
		resp.CostMicroUSD = statedCost(chat.Usage.JSON.ExtraFields["cost"].Raw())
	}
	if len(chat.Choices) == 0 {
		return resp, protocol.Errorf(protocol.CodeModelFailed, "model %s answered with no choice", model)
	}
	message := chat.Choices[0].Message
	if message.Content == "" && message.Refusal != "" {
		return resp, protocol.Errorf(protocol.CodeModelFailed, "model %s refused: %s", model, o.opt.Key.redact(message.Refusal))
	}
	resp.Text = message.Content
	return resp, nil
}

// failed keeps what the server said, without the key.
func (o *OpenAI) failed(model string, err error) error {
	if ctxErr := contextError(err); ctxErr != nil {
		return ctxErr
	}
	text, status := err.Error(), 0
	if api, ok := errors.AsType[*openai.Error](err); ok {
		status = api.StatusCode
		said := api.Message
		if said == "" {
			said = http.StatusText(status)
		}
		text = fmt.Sprintf("HTTP status %d: %s", status, said)
	}
	e := protocol.Errorf(protocol.CodeModelFailed, "model %s: %s", model, clip(o.opt.Key.redact(text)))
	if status != 0 {
		e = e.With("status", status)
	}
	return e
}

func contextError(err error) error {
	for _, e := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return e
		}
	}
	return nil
}

// clip bounds what a server said.
func clip(s string) string {
	const most = 2000
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// statedCost reads a JSON number of US dollars.
func statedCost(raw string) int64 {
	usd, err := strconv.ParseFloat(raw, 64)
	if err != nil || !(usd > 0 && usd < 1e6) {
		return 0
	}
	return int64(math.Ceil(usd * 1e6))
}

// boundedTransport limits the body of each answer.
type boundedTransport struct{ next http.RoundTripper }

func (t boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	next := t.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundedBody{resp.Body, maxReply}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxReply)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
