package client_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// serve handles each connection to path by f, which may send several replies.
func serve(t *testing.T, path string, f func(net.Conn, protocol.LocalRequest)) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var req protocol.LocalRequest
			if wire.ReadFrame(conn, &req, protocol.MaxMessage) == nil {
				f(conn, req)
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

func reply(conn net.Conn, r protocol.LocalReply) { wire.WriteFrame(conn, r, protocol.MaxMessage) }

func value(v any) []byte {
	b, err := wire.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func TestAsCompleted(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	var have [][]int
	serve(t, path, func(conn net.Conn, r protocol.LocalRequest) {
		if r.Kind == protocol.CallBranch {
			reply(conn, protocol.LocalReply{Value: value(protocol.BranchResult{ID: "br-x", N: 3})})
			return
		}
		var args protocol.ResultsArgs
		if err := wire.Unmarshal(r.Arguments, &args); err != nil {
			t.Error(err)
		}
		have = append(have, args.Have)
		batches := [][]protocol.ChildResult{
			{{Index: 2, Result: value("two")}},
			{{Index: 0, Error: protocol.Errorf(protocol.CodeChildExited, "gone")}, {Index: 1, Result: value(1)}},
		}
		reply(conn, protocol.LocalReply{Value: value(protocol.ResultsResult{Results: batches[len(have)-1]})})
	})
	b, err := client.New(client.Options{Socket: path}).Branch(t.Context(), client.BranchOptions{N: 3, Payloads: []any{1, "x", nil}})
	if err != nil || b.Index != nil {
		t.Fatalf("branch: %+v, %v", b, err)
	}
	var order []int
	for r, err := range b.AsCompleted(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, r.Index)
		if (r.Err != nil) != (r.Index == 0) {
			t.Errorf("result %d: error %v", r.Index, r.Err)
		}
	}
	if diff := cmp.Diff([]int{2, 0, 1}, order); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([][]int{{}, {2}}, have); diff != "" {
		t.Errorf("asked with (-want +got):\n%s", diff)
	}
}

func TestAsCompletedEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	serve(t, path, func(conn net.Conn, r protocol.LocalRequest) {
		var args protocol.ResultsArgs
		if wire.Unmarshal(r.Arguments, &args); args.Timeout <= 0 {
			t.Errorf("timeout %d was sent", args.Timeout)
		}
		reply(conn, protocol.LocalReply{Value: value(protocol.ResultsResult{})})
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, err := range client.New(client.Options{Socket: path}).Handle("br-x", 2).AsCompleted(ctx) {
		if protocol.CodeOf(err) != protocol.CodeTimeout {
			t.Errorf("error %v, want a timeout", err)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	serve(t, path, func(conn net.Conn, r protocol.LocalRequest) {
		switch r.Kind {
		case protocol.CallBudget:
			reply(conn, protocol.LocalReply{Error: protocol.Errorf(protocol.CodeOverBudget, "no").With("limit", 3)})
		case protocol.CallSync: // closes without an answer
		case protocol.CallWhoami:
			conn.Read(make([]byte, 1)) // until the caller goes
		}
	})
	c := client.New(client.Options{Socket: path})
	_, err := c.Budget(t.Context())
	if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != protocol.CodeOverBudget || e.Details["limit"] != int64(3) && e.Details["limit"] != int8(3) {
		t.Errorf("budget: %v %#v", err, e)
	}
	if _, err := c.Sync(t.Context()); protocol.CodeOf(err) != protocol.CodeAgentRestarted {
		t.Errorf("sync: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Whoami(ctx); protocol.CodeOf(err) != protocol.CodeTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("whoami: %v", err)
	}
	if _, err := c.Finish(t.Context(), client.FinishOptions{Result: make([]byte, protocol.MaxPayload+1)}); protocol.CodeOf(err) != protocol.CodeTooLarge {
		t.Errorf("finish: %v", err)
	}
	if _, err := c.Finish(t.Context(), client.FinishOptions{Result: make(chan int)}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("finish with a channel: %v", err)
	}
}

func TestAgentThatComesLate(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	done := make(chan error, 1)
	go func() {
		_, err := client.New(client.Options{Socket: path}).Tree(t.Context())
		done <- err
	}()
	serve(t, path, func(conn net.Conn, _ protocol.LocalRequest) { reply(conn, protocol.LocalReply{}) })
	if err := <-done; err != nil {
		t.Errorf("tree: %v", err)
	}
}

func TestOnResumeConnectsAgain(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	n := 0
	serve(t, path, func(conn net.Conn, r protocol.LocalRequest) {
		n++
		for count := uint64(n); count < uint64(n)+2; count++ { // 1 2, 2 3, 3 4, ...
			reply(conn, protocol.LocalReply{Resume: &protocol.ResumeEvent{Count: count, Entropy: make([]byte, 32)}})
		}
	})
	c := client.New(client.Options{Socket: path})
	counts := make(chan uint64, 100)
	if _, err := c.OnResume(t.Context(), func(e client.Event) { counts <- e.Count }); err != nil {
		t.Fatal(err)
	}
	for want := uint64(2); want < 5; want++ { // 1 was there before
		if got := <-counts; got != want {
			t.Errorf("event %d, want %d", got, want)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.OnResume(t.Context(), func(client.Event) {}); err == nil {
		t.Error("a closed client subscribes")
	}
}

func TestRand(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	event := protocol.ResumeEvent{Count: 1, Seed: []byte("episode")}
	serve(t, path, func(conn net.Conn, _ protocol.LocalRequest) { reply(conn, protocol.LocalReply{Resume: &event}) })
	draw := func() uint64 {
		c := client.New(client.Options{Socket: path})
		if _, err := c.Tree(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c.Rand().Uint64()
	}
	if a, b := draw(), draw(); a != b {
		t.Error("a deterministic seed gives different numbers")
	}
	event.Seed, event.Entropy = nil, []byte("a")
	a := draw()
	event.Entropy = []byte("b")
	if a == draw() {
		t.Error("different entropy gives equal numbers")
	}
}
