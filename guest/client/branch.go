package client

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// BranchOptions of Branch. Lists are empty or have one entry per child.
type BranchOptions struct {
	N        int
	Payloads []any
	Env      []map[string]string // seen in Whoami
	Labels   []string
	MaxLive  int                   // how many run at once; 0: all
	At       protocol.CheckpointID // "": here; else children start from it
	Timeout  time.Duration         // of each child; 0: none
	MinOK    int                   // how many must start; 0: all
}

// Branch is a return of Client.Branch. A handle belongs to the timeline that
// made it; in another its methods fail with CodeWrongTimeline.
type Branch struct {
	ID         protocol.BranchID
	Checkpoint protocol.CheckpointID
	Index      *int // nil in the parent, the child's number in a child
	N          int
	Payload    Value // in a child: its own

	client *Client
}

// Branch forks the machine into N copies. It returns in the parent and in each
// child. With At, only in the parent: the children come back where that
// checkpoint was made.
func (c *Client) Branch(ctx context.Context, opt BranchOptions) (*Branch, error) {
	args := protocol.BranchArgs{
		N: opt.N, MaxLive: opt.MaxLive, At: opt.At, Env: opt.Env, Labels: opt.Labels,
		Timeout: int64(opt.Timeout), MinOK: opt.MinOK,
	}
	for _, p := range opt.Payloads {
		b, err := encode(p)
		if err != nil {
			return nil, err
		}
		args.Payloads = append(args.Payloads, b)
	}
	var r protocol.BranchResult
	if err := c.call(ctx, protocol.CallBranch, args, &r); err != nil {
		return nil, err
	}
	return &Branch{ID: r.ID, Checkpoint: r.Checkpoint, Index: r.Index, N: r.N, Payload: r.Payload, client: c}, nil
}

// Handle makes a handle of a branch that this timeline made earlier.
func (c *Client) Handle(id protocol.BranchID, n int) *Branch { return &Branch{ID: id, N: n, client: c} }

// Result is how one child ended: a result, or an error such as CodeChildExited.
type Result struct {
	Index      int
	Result     Value
	Err        *protocol.Error       // nil with a result
	Checkpoint protocol.CheckpointID // of a child that finished with Keep
}

// Results waits for results of children that are not in have. When ctx has a
// deadline and none comes before it, the list is empty.
func (b *Branch) Results(ctx context.Context, have []int) ([]Result, error) {
	args := protocol.ResultsArgs{Branch: b.ID, Have: have}
	if args.Have == nil {
		args.Have = []int{}
	}
	if deadline, ok := ctx.Deadline(); ok {
		if args.Timeout = int64(time.Until(deadline)); args.Timeout <= 0 {
			return nil, nil
		}
	}
	var r protocol.ResultsResult
	if err := b.client.call(ctx, protocol.CallResults, args, &r); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, nil
		}
		return nil, err
	}
	out := make([]Result, 0, len(r.Results))
	for _, c := range r.Results {
		out = append(out, Result{Index: c.Index, Result: c.Result, Err: c.Error, Checkpoint: c.Checkpoint})
	}
	return out, nil
}

// AsCompleted yields the children's results as they come in, each once. It
// ends after all N, or with an error: CodeTimeout when the deadline of ctx
// passes before.
func (b *Branch) AsCompleted(ctx context.Context) iter.Seq2[Result, error] {
	return func(yield func(Result, error) bool) {
		have := make([]int, 0, b.N)
		for len(have) < b.N {
			list, err := b.Results(ctx, have)
			if err == nil && len(list) == 0 {
				err = protocol.Errorf(protocol.CodeTimeout, "%d of %d children have ended", len(have), b.N)
			}
			if err != nil {
				yield(Result{}, err)
				return
			}
			for _, r := range list {
				have = append(have, r.Index)
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// Cancel ends child i, whose result is then CodeCancelled.
func (b *Branch) Cancel(ctx context.Context, i int) error {
	return b.client.call(ctx, protocol.CallCancel, protocol.CancelArgs{Branch: b.ID, Index: i}, nil)
}

// Adopt ends this timeline and goes on in child i, where its Finish with Keep
// returns. Adopt itself returns only if that failed, or when this timeline's
// kept present is restored.
func (b *Branch) Adopt(ctx context.Context, i int, payload any) (Checkpoint, error) {
	p, err := encode(payload)
	if err != nil {
		return Checkpoint{}, err
	}
	return b.client.checkpoint(ctx, protocol.CallAdopt, protocol.AdoptArgs{Branch: b.ID, Index: i, Payload: p})
}

// Discard gives up the kept checkpoints of the results.
func (b *Branch) Discard(ctx context.Context) error {
	return b.client.call(ctx, protocol.CallDiscard, protocol.DiscardArgs{Branch: b.ID}, nil)
}
