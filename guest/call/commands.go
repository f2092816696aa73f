package call

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/protocol"
)

type doFunc = func(ctx context.Context, s *session, args []string) error

func snapshot(fs *flag.FlagSet) doFunc {
	label, durable := fs.String("label", "", ""), fs.Bool("durable", false, "")
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args); err != nil {
			return err
		}
		cp, err := s.client.Snapshot(ctx, client.SnapshotOptions{Label: *label, Durable: *durable})
		return s.printCheckpoint(cp, err)
	}
}

func (s *session) printCheckpoint(cp client.Checkpoint, err error) error {
	if err != nil {
		return err
	}
	payload, err := toJSON(cp.Payload)
	if err != nil {
		return err
	}
	return s.print(struct {
		ID       protocol.CheckpointID `json:"id"`
		Restored bool                  `json:"restored"`
		Index    *int                  `json:"index"`
		Branch   protocol.BranchID     `json:"branch,omitempty"`
		Payload  json.RawMessage       `json:"payload"`
	}{cp.ID, cp.Restored, cp.Index, cp.Branch, payload},
		variable{"CHECKPOINT", string(cp.ID)}, variable{"RESTORED", flagText(cp.Restored)},
		variable{"INDEX", index(cp.Index)}, variable{"BRANCH", string(cp.Branch)},
		variable{"PAYLOAD", string(payload)})
}

// payload parses an option that may be absent.
func payload(s string) (any, error) {
	if s == "" {
		return nil, nil
	}
	return fromJSON(s)
}

func restore(fs *flag.FlagSet) doFunc {
	text := fs.String("payload", "", "")
	drop, detach := fs.Bool("drop-present", false, ""), fs.Bool("detach", false, "")
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args, "ID"); err != nil {
			return err
		}
		id, err := protocol.ParseCheckpointID(args[0])
		if err != nil {
			return errUsage{err}
		}
		p, err := payload(*text)
		if err != nil {
			return err
		}
		return s.printCheckpoint(s.client.Restore(ctx, id, client.RestoreOptions{Payload: p, DropPresent: *drop, Detach: *detach}))
	}
}

func branch(fs *flag.FlagSet) doFunc {
	opt := client.BranchOptions{}
	text, at := fs.String("payloads", "", ""), fs.String("at", "", "")
	labels, env := fs.String("labels", "", ""), fs.String("env", "", "")
	fs.IntVar(&opt.MaxLive, "max-live", 0, "")
	fs.IntVar(&opt.MinOK, "min-ok", 0, "")
	fs.DurationVar(&opt.Timeout, "timeout", 0, "")
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args, "N"); err != nil {
			return err
		}
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 || n > protocol.MaxBranch {
			return usage("%q is not a number of children (1 to %d)", args[0], protocol.MaxBranch)
		}
		list, err := payload(*text)
		if err != nil {
			return err
		}
		if list != nil {
			payloads, ok := list.([]any)
			if !ok || len(payloads) != n {
				return usage("--payloads: want a JSON array with %d elements", n)
			}
			opt.Payloads = payloads
		}
		if err := errors.Join(perChild("--labels", *labels, n, &opt.Labels), perChild("--env", *env, n, &opt.Env)); err != nil {
			return err
		}
		opt.N, opt.At = n, protocol.CheckpointID(*at)
		b, err := s.client.Branch(ctx, opt)
		if err != nil {
			return err
		}
		return s.printBranch(b)
	}
}

// perChild parses an option that is empty or a JSON array with one element
// per child.
func perChild[T any](name, text string, n int, into *[]T) error {
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return usage("%s: %w", name, err)
	}
	if len(*into) != n {
		return usage("%s: want a JSON array with %d elements", name, n)
	}
	return nil
}

func (s *session) printBranch(b *client.Branch) error {
	payload, err := toJSON(b.Payload)
	if err != nil {
		return err
	}
	return s.print(struct {
		ID         protocol.BranchID     `json:"id"`
		Checkpoint protocol.CheckpointID `json:"checkpoint"`
		Index      *int                  `json:"index"`
		N          int                   `json:"n"`
		Payload    json.RawMessage       `json:"payload"`
	}{b.ID, b.Checkpoint, b.Index, b.N, payload},
		variable{"BRANCH", string(b.ID)}, variable{"CHECKPOINT", string(b.Checkpoint)},
		variable{"INDEX", index(b.Index)}, variable{"N", strconv.Itoa(b.N)},
		variable{"PAYLOAD", string(payload)})
}

func finish(fs *flag.FlagSet) doFunc {
	keep := fs.Bool("keep", false, "")
	return func(ctx context.Context, s *session, args []string) error {
		if len(args) > 1 {
			return want(args, "RESULT")
		}
		var result any
		if len(args) == 1 {
			var err error
			if result, err = fromJSON(args[0]); err != nil {
				return err
			}
		}
		return s.printCheckpoint(s.client.Finish(ctx, client.FinishOptions{Result: result, Keep: *keep}))
	}
}

func results(fs *flag.FlagSet) doFunc {
	have, timeout := fs.String("have", "", ""), fs.Duration("timeout", 0, "")
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args, "BRANCH"); err != nil {
			return err
		}
		id, err := protocol.ParseBranchID(args[0])
		if err != nil {
			return errUsage{err}
		}
		var known []int
		for word := range strings.FieldsFuncSeq(*have, func(r rune) bool { return r == ',' || r == ' ' }) {
			i, err := strconv.Atoi(word)
			if err != nil {
				return usage("--have: %q is not an index", word)
			}
			known = append(known, i)
		}
		ctx, cancel := within(ctx, *timeout)
		defer cancel()
		list, err := s.client.Handle(id, 0).Results(ctx, known)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return errNothing
		}
		return s.printResults(list, known)
	}
}

type resultJSON struct {
	Index      int                   `json:"index"`
	Result     json.RawMessage       `json:"result"`
	Error      *protocol.Error       `json:"error"`
	Checkpoint protocol.CheckpointID `json:"checkpoint,omitempty"`
}

// printResults prints all results; the variables RESULT_0 and so on hold those
// of single children, and HAVE is for the next --have.
func (s *session) printResults(list []client.Result, known []int) error {
	out := make([]resultJSON, 0, len(list))
	var vars []variable
	for _, r := range list {
		value, err := toJSON(r.Result)
		if err != nil {
			return err
		}
		out = append(out, resultJSON{r.Index, value, r.Err, r.Checkpoint})
		known = append(known, r.Index)
		code := ""
		if r.Err != nil {
			code = string(r.Err.Code)
		}
		i := strconv.Itoa(r.Index)
		vars = append(vars, variable{"RESULT_" + i, string(value)}, variable{"ERROR_" + i, code}, variable{"CHECKPOINT_" + i, string(r.Checkpoint)})
	}
	words := make([]string, len(known))
	for i, k := range known {
		words[i] = strconv.Itoa(k)
	}
	return s.print(out, append(vars, variable{"HAVE", strings.Join(words, ",")})...)
}

// child parses BRANCH I.
func child(s *session, args []string) (*client.Branch, int, error) {
	if err := want(args, "BRANCH", "I"); err != nil {
		return nil, 0, err
	}
	id, err := protocol.ParseBranchID(args[0])
	if err != nil {
		return nil, 0, errUsage{err}
	}
	i, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, 0, usage("%q is not an index", args[1])
	}
	return s.client.Handle(id, 0), i, nil
}

func cancelChild(*flag.FlagSet) doFunc {
	return func(ctx context.Context, s *session, args []string) error {
		b, i, err := child(s, args)
		if err != nil {
			return err
		}
		return b.Cancel(ctx, i)
	}
}

func adopt(fs *flag.FlagSet) doFunc {
	text := fs.String("payload", "", "")
	return func(ctx context.Context, s *session, args []string) error {
		b, i, err := child(s, args)
		if err != nil {
			return err
		}
		p, err := payload(*text)
		if err != nil {
			return err
		}
		return s.printCheckpoint(b.Adopt(ctx, i, p))
	}
}

func discard(*flag.FlagSet) doFunc {
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args, "BRANCH"); err != nil {
			return err
		}
		id, err := protocol.ParseBranchID(args[0])
		if err != nil {
			return errUsage{err}
		}
		return s.client.Handle(id, 0).Discard(ctx)
	}
}

func llmQuery(fs *flag.FlagSet) doFunc {
	model, timeout := fs.String("model", "", ""), fs.Duration("timeout", 0, "")
	return func(ctx context.Context, s *session, args []string) error {
		if len(args) > 1 {
			return want(args, "PROMPT")
		}
		var prompt string
		if len(args) == 1 {
			prompt = args[0]
		} else {
			b, err := io.ReadAll(io.LimitReader(s.In, protocol.MaxPayload+1))
			if err != nil {
				return usage("read the prompt: %w", err)
			}
			prompt = string(b)
		}
		ctx, cancel := within(ctx, *timeout)
		defer cancel()
		text, err := s.client.LLMQuery(ctx, prompt, *model)
		if err != nil {
			return err
		}
		return s.print(map[string]string{"text": text}, variable{"TEXT", text})
	}
}

func tree(*flag.FlagSet) doFunc {
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args); err != nil {
			return err
		}
		t, err := s.client.Tree(ctx)
		if err != nil {
			return err
		}
		return s.print(t, variable{"SANDBOX", string(t.Sandbox)}, variable{"STATE", t.State})
	}
}

func whoami(*flag.FlagSet) doFunc {
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args); err != nil {
			return err
		}
		w, err := s.client.Whoami(ctx)
		if err != nil {
			return err
		}
		return s.print(map[string]any{
			"sandbox": w.Sandbox, "timeline": w.Timeline, "line": w.Line, "node": w.Node, "depth": w.Depth,
			"origin": w.Origin, "branch": w.Branch, "index": w.Index, "label": w.Label, "env": w.Env,
		},
			variable{"SANDBOX", string(w.Sandbox)}, variable{"TIMELINE", string(w.Timeline)},
			variable{"NODE", w.Node}, variable{"DEPTH", strconv.Itoa(w.Depth)},
			variable{"BRANCH", string(w.Branch)}, variable{"INDEX", index(w.Index)}, variable{"LABEL", w.Label})
	}
}

func budget(*flag.FlagSet) doFunc {
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args); err != nil {
			return err
		}
		b, err := s.client.Budget(ctx)
		if err != nil {
			return err
		}
		var vars []variable
		for name, x := range b {
			name = "BUDGET_" + strings.ToUpper(name)
			vars = append(vars, variable{name + "_LIMIT", strconv.FormatInt(x.Limit, 10)}, variable{name + "_USED", strconv.FormatInt(x.Used, 10)})
		}
		return s.print(b, vars...)
	}
}

func syncCall(fs *flag.FlagSet) doFunc {
	timeout := fs.Duration("timeout", 10*time.Minute, "")
	return func(ctx context.Context, s *session, args []string) error {
		if err := want(args); err != nil {
			return err
		}
		ctx, cancel := within(ctx, *timeout)
		defer cancel()
		p, err := s.client.Sync(ctx)
		if err != nil {
			return err
		}
		return s.print(p, variable{"STREAM", string(p.Stream)}, variable{"SEQUENCE", strconv.FormatUint(p.Sequence, 10)})
	}
}
