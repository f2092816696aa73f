package sandbox

import (
	"context"
	"errors"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// maxCalls bounds the pending calls of one timeline. agentd refuses from
// MaxPendingCalls on; some may be settled here and not yet there.
const maxCalls = protocol.MaxPendingCalls + inboxSize

// maxCallBytes bounds the arguments of all pending calls of one timeline.
const maxCallBytes = 4 * protocol.MaxPayload

// call is one guest call that this process has taken and not yet settled.
type call struct {
	kind   protocol.CallKind
	size   int
	cancel context.CancelCauseFunc
	acked  chan struct{}
}

// took handles the messages that no operation waits for, and tells whether m
// was one. It runs in the link's reader and does not block.
func (t *timeline) took(m protocol.Message) bool {
	switch m := m.(type) {
	case *protocol.Call:
		t.received(m)
	case *protocol.CallGone:
		t.gone(m.Key)
	case *protocol.OutcomeAck:
		t.ack(m.Key)
	case *protocol.CallerExited:
		if t.exiting.CompareAndSwap(false, true) {
			t.sb.task(func() {
				defer t.exiting.Store(false)
				t.sb.callerExited(t, m)
			})
		}
	default:
		return false
	}
	return true
}

// received starts the work of a call, once per key.
func (t *timeline) received(m *protocol.Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil || t.calls[m.Key] != nil {
		return
	}
	if m.Key.IsZero() || len(t.calls) >= maxCalls {
		return // this is not agentd
	}
	ctx, cancel := context.WithCancelCause(t.ctx)
	t.calls[m.Key] = &call{kind: m.Kind, size: len(m.Arguments), cancel: cancel, acked: make(chan struct{})}
	t.callBytes += len(m.Arguments)
	full := t.callBytes > maxCallBytes
	t.sb.task(func() {
		defer cancel(context.Canceled)
		if full {
			m.Arguments = nil
			t.sb.answer(t, m.Key, nil, protocol.Errorf(protocol.CodeBusy, "the pending calls of this timeline hold more than %d bytes", maxCallBytes))
			return
		}
		t.sb.serve(ctx, t, m)
	})
}

// gone gives up a call whose caller went away; operations go on.
func (t *timeline) gone(key protocol.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.calls[key]; c != nil && (c.kind == protocol.CallResults || c.kind == protocol.CallLLM) {
		c.cancel(protocol.Errorf(protocol.CodeCancelled, "the caller went away"))
	}
}

// knows tells whether a call has been taken and is not yet settled.
func (t *timeline) knows(key protocol.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls[key] != nil
}

// full tells that no agentd has so many calls pending.
func (t *timeline) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.calls) >= maxCalls
}

// expectAck returns what is closed when the outcome of key is acknowledged.
func (t *timeline) expectAck(key protocol.Key) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[key]
	if c == nil { // a call of an earlier daemon
		_, cancel := context.WithCancelCause(t.ctx)
		c = &call{cancel: cancel, acked: make(chan struct{})}
		t.calls[key] = c
	}
	return c.acked
}

func (t *timeline) ack(key protocol.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.calls[key]; c != nil && !isClosed(c.acked) {
		close(c.acked)
	}
}

// settled forgets a call whose outcome has arrived.
func (t *timeline) settled(key protocol.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.calls[key]; c != nil {
		c.cancel(context.Canceled)
		t.callBytes -= c.size
		delete(t.calls, key)
	}
}

// answer delivers a value or an error as the outcome of key.
func (s *Sandbox) answer(t *timeline, key protocol.Key, value any, err error) {
	o := &protocol.Outcome{Key: key, Error: protocol.AsError(err)}
	if err == nil && value != nil {
		if o.Value, err = encode(value); err != nil {
			o.Error = protocol.AsError(err)
		}
	}
	if err := s.deliver(t, o); err != nil && t.ctx.Err() == nil {
		s.log.Warn("deliver outcome", "timeline", t.id, "key", key, "error", err)
	}
}

// serve answers one call. Operations settle their own outcome: they return
// errSettled.
func (s *Sandbox) serve(ctx context.Context, t *timeline, m *protocol.Call) {
	value, err := s.dispatch(ctx, t, m)
	if errors.Is(err, errSettled) || t.ctx.Err() != nil {
		return
	}
	s.answer(t, m.Key, value, err)
}

// errSettled says that the outcome travelled in a thaw, or nobody is left to
// get one.
var errSettled = errors.New("outcome already settled")

func (s *Sandbox) dispatch(ctx context.Context, t *timeline, m *protocol.Call) (any, error) {
	switch m.Kind {
	case protocol.CallSnapshot:
		return decoded(m, func(a protocol.SnapshotArgs) (any, error) { return s.snapshotCall(t, m.Key, a) })
	case protocol.CallRestore:
		return decoded(m, func(a protocol.RestoreArgs) (any, error) { return nil, s.restoreCall(t, m.Key, a) })
	case protocol.CallBranch:
		return decoded(m, func(a protocol.BranchArgs) (any, error) { return s.branchCall(t, m.Key, a) })
	case protocol.CallFinish:
		return decoded(m, func(a protocol.FinishArgs) (any, error) { return nil, s.finishCall(t, m.Key, a) })
	case protocol.CallAdopt:
		return decoded(m, func(a protocol.AdoptArgs) (any, error) { return nil, s.adoptCall(t, m.Key, a) })
	case protocol.CallResults:
		return decoded(m, func(a protocol.ResultsArgs) (any, error) { return s.awaitResults(ctx, t, a) })
	case protocol.CallCancel:
		return decoded(m, func(a protocol.CancelArgs) (any, error) { return nil, s.cancelChild(t, a) })
	case protocol.CallDiscard:
		return decoded(m, func(a protocol.DiscardArgs) (any, error) { return nil, s.discard(t, a) })
	case protocol.CallLLM:
		return decoded(m, func(a protocol.LLMArgs) (any, error) { return s.llm(ctx, t, a) })
	case protocol.CallTree:
		return s.Tree(ctx)
	case protocol.CallWhoami:
		return s.whoami(t)
	case protocol.CallBudget:
		return s.budget(t)
	case protocol.CallSync:
		return protocol.SyncResult{Position: protocol.Position{Stream: t.stream}}, nil
	default:
		return nil, protocol.Errorf(protocol.CodeNotSupported, "no call %q", m.Kind)
	}
}

func decoded[T any](m *protocol.Call, f func(T) (any, error)) (any, error) {
	var args T
	if len(m.Arguments) > 0 {
		if err := wire.Unmarshal(m.Arguments, &args); err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "arguments of %s: %v", m.Kind, err)
		}
	}
	return f(args)
}

func (s *Sandbox) llm(ctx context.Context, t *timeline, a protocol.LLMArgs) (any, error) {
	if s.models == nil {
		return nil, protocol.Errorf(protocol.CodeNoModel, "this sandbox was started without a model")
	}
	if len(a.Prompts) == 0 || len(a.Prompts) > protocol.MaxBatch {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%d prompts; want 1 to %d", len(a.Prompts), protocol.MaxBatch)
	}
	r, err := s.models.Complete(ctx, a, usage{s})
	if err != nil {
		return nil, err
	}
	return r, nil
}
