package sandbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// The operations themselves are tested in integration/simulation, where there
// are guests.

func TestLedger(t *testing.T) {
	t.Parallel()
	j := newJournal()
	s := tree(t, j, sandbox.Spec{Limits: sandbox.Limits{LLMCalls: 5, LLMTokens: 100}})
	for _, n := range []int{3, 2} {
		if err := s.Ledger().Reserve(n); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Ledger().Reserve(1)
	if protocol.CodeOf(err) != protocol.CodeOverBudget {
		t.Errorf("sixth call: %v, want %s", err, protocol.CodeOverBudget)
	}
	if d := protocol.AsError(err).Details; d["budget"] != protocol.BudgetLLMCalls || d["used"] != int64(5) || d["limit"] != int64(5) {
		t.Errorf("details %v", d)
	}
	// Another process goes on with what was used up.
	again := sandbox.New(sandbox.Deps{Journal: j}, id, sandbox.Spec{Limits: sandbox.Limits{LLMCalls: 6, LLMTokens: 100}})
	defer again.Close()
	if err := again.Ledger().Settle(100, 1); err != nil {
		t.Fatal(err)
	}
	err = again.Ledger().Reserve(1)
	if protocol.CodeOf(err) != protocol.CodeOverBudget || protocol.AsError(err).Details["budget"] != protocol.BudgetLLMTokens {
		t.Errorf("after all tokens are used: %v", err)
	}
}

func TestRoomForMachines(t *testing.T) {
	t.Parallel()
	s := tree(t, newJournal(), sandbox.Spec{MemoryBytes: 10, Limits: sandbox.Limits{Live: 4, Memory: 30}})
	if err := s.Reserve(3); err != nil {
		t.Fatal(err)
	}
	err := s.Reserve(1)
	if protocol.CodeOf(err) != protocol.CodeOverBudget || protocol.AsError(err).Details["budget"] != protocol.BudgetMemory {
		t.Errorf("a fourth machine of 10 bytes, of 30: %v", err)
	}
	s.Unreserve(2)
	if err := s.Reserve(2); err != nil {
		t.Errorf("after room was given back: %v", err)
	}
}

func TestSlotTakesOneResult(t *testing.T) {
	t.Parallel()
	s := tree(t, newJournal(), sandbox.Spec{})
	child := sandbox.LineRecord{ID: "ln-y", Branch: "br-1", Index: 0, Parent: "tl-z"}
	for _, value := range []string{"first", "second"} {
		if err := s.FillSlot(child, protocol.ChildResult{Result: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Results("tl-z", "br-1")
	if want := []protocol.ChildResult{{Index: 0, Result: []byte("first")}}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("results: %s, %v", cmp.Diff(want, got), err)
	}
	if _, err := s.Results("tl-y", "br-1"); protocol.CodeOf(err) != protocol.CodeWrongTimeline {
		t.Errorf("a child asks for its siblings' results: %v", err)
	}
	if _, err := s.Results("tl-z", "br-none"); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("no such branch: %v", err)
	}
	// What the parent says it has is not told again.
	if got, err := s.Results("tl-z", "br-1", 0); err != nil || len(got) != 0 {
		t.Errorf("results it has: %v, %v", got, err)
	}
}

func TestDetachedChildHasNoSlot(t *testing.T) {
	t.Parallel()
	s := tree(t, newJournal(), sandbox.Spec{})
	if err := s.FillSlot(sandbox.LineRecord{Branch: "br-1", Parent: "tl-z", Detached: true}, protocol.ChildResult{}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Results("tl-z", "br-1"); err != nil || len(got) != 0 {
		t.Errorf("results %v, %v", got, err)
	}
}

func TestResultsEndWithTheirParent(t *testing.T) {
	t.Parallel()
	s := tree(t, newJournal(), sandbox.Spec{})
	child := sandbox.LineRecord{ID: "ln-y", Branch: "br-1", Parent: "tl-z"}
	if err := s.FillSlot(child, protocol.ChildResult{Result: []byte("x"), Checkpoint: "cp-kept"}); err != nil {
		t.Fatal(err)
	}
	if err := s.EndTimelines("tl-z"); err != nil {
		t.Fatal(err)
	}
	if err := s.FillSlot(sandbox.LineRecord{ID: "ln-x", Branch: "br-1", Index: 1, Parent: "tl-z"}, protocol.ChildResult{}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Results("tl-z", "br-1"); err != nil || len(got) != 0 {
		t.Errorf("results nobody can collect: %v, %v", got, err)
	}
}

func TestResultsTimeOut(t *testing.T) {
	t.Parallel()
	s := tree(t, newJournal(), sandbox.Spec{})
	for _, timeout := range []time.Duration{-1, time.Millisecond} {
		out, err := s.AwaitResults(t.Context(), "tl-z", protocol.ResultsArgs{Branch: "br-1", Timeout: int64(timeout)})
		if r, ok := out.(protocol.ResultsResult); err != nil || !ok || len(r.Results) != 0 {
			t.Errorf("timeout %v: %v, %v", timeout, out, err)
		}
	}
}

func TestAncestorsComeFirst(t *testing.T) {
	t.Parallel()
	s := tree(t, newJournal(), sandbox.Spec{})
	got, err := s.Unended()
	if want := []protocol.TimelineID{"tl-z", "tl-x", "tl-y", "tl-a"}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("all: %s, %v", cmp.Diff(want, got), err)
	}
	got, err = s.Descendants("tl-z")
	if want := []protocol.TimelineID{"tl-x", "tl-y", "tl-a"}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("below the first: %s, %v", cmp.Diff(want, got), err)
	}
	if got, err := s.Descendants("tl-x"); err != nil || len(got) != 0 {
		t.Errorf("below a leaf: %v, %v", got, err)
	}
}

func TestTreeIsOldestFirst(t *testing.T) {
	t.Parallel()
	j := newJournal()
	tree(t, j, sandbox.Spec{})
	at := func(n int) time.Time { return time.Unix(int64(n), 0).UTC() }
	err := sandbox.Write(j,
		sandbox.Record{Key: "tl-z", Value: sandbox.TimelineRecord{ID: "tl-z", Line: "ln-z", State: sandbox.StateLive, Created: at(1)}},
		sandbox.Record{Key: "tl-y", Value: sandbox.TimelineRecord{ID: "tl-y", Line: "ln-y", State: sandbox.StateLive, Created: at(4)}},
		sandbox.Record{Key: "tl-x", Value: sandbox.TimelineRecord{ID: "tl-x", Line: "ln-x", State: sandbox.StateStopped, Created: at(2),
			Reason: protocol.Errorf(protocol.CodeChildLost, "gone")}},
		sandbox.Record{Key: "tl-a", Value: sandbox.TimelineRecord{ID: "tl-a", Line: "ln-a", State: sandbox.StateLive, Created: at(3)}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.ReadTree(j, id, []sandbox.Checkpoint{{ID: "cp-1", Timeline: "tl-z", Class: sandbox.ClassNamed, Created: at(5), Bytes: 7}})
	want := protocol.TreeResult{Sandbox: id, State: "running",
		Timelines: []protocol.TreeTimeline{
			{ID: "tl-z", Line: "ln-z", Node: "0", State: "live"},
			{ID: "tl-x", Line: "ln-x", Node: "0.1", State: "stopped", Reason: "gone"},
			{ID: "tl-a", Line: "ln-a", Node: "0.0.0", State: "live"},
			{ID: "tl-y", Line: "ln-y", Node: "0.0", State: "live"},
		},
		Checkpoints: []protocol.TreeCheckpoint{{ID: "cp-1", Timeline: "tl-z", Class: "named", Created: at(5).UnixNano(), Bytes: 7}}}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%s, %v", cmp.Diff(want, got), err)
	}
}

func TestAtRest(t *testing.T) {
	t.Parallel()
	j := newJournal()
	s := tree(t, j, sandbox.Spec{})
	if rest, err := sandbox.AtRest(j, id); err != nil || rest {
		t.Errorf("with live timelines: %v, %v", rest, err)
	}
	if err := s.EndTimelines("tl-z", "tl-y", "tl-a"); err != nil {
		t.Fatal(err)
	}
	if rest, err := sandbox.AtRest(j, id); err != nil || !rest {
		t.Errorf("with stopped and ended ones: %v, %v", rest, err)
	}
	if err := sandbox.Write(j, sandbox.Record{Key: "br-1", Value: sandbox.BranchRecord{ID: "br-1"}}); err != nil {
		t.Fatal(err)
	}
	if rest, err := sandbox.AtRest(j, id); err != nil || rest {
		t.Errorf("with a branch half-way: %v, %v", rest, err)
	}
}

func TestUnclearWrite(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]bool{"on disk": true, "not on disk": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJournal()
			s := tree(t, j, sandbox.Spec{})
			confirms := 0
			j.broken = func(label string) (bool, bool) {
				if label == "journal.confirm" {
					confirms++
					return confirms < 3, false
				}
				return true, there
			}
			err := s.Commit(sandbox.LineRecord{ID: "ln-new", Node: "0.2"})
			if (err == nil) != there {
				t.Errorf("commit: %v", err)
			}
			if err != nil && !errors.Is(err, errDisk) {
				t.Errorf("commit: %v does not say why", err)
			}
			if confirms != 3 {
				t.Errorf("%d tries to confirm, want 3", confirms)
			}
			if found := j.Get("line", "ln-new") != nil; found != there {
				t.Errorf("the record is there: %v", found)
			}
		})
	}
}

func TestCheckBranch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args protocol.BranchArgs
		want protocol.Code
	}{
		{"one", protocol.BranchArgs{N: 1}, ""},
		{"full", protocol.BranchArgs{N: 2, Payloads: [][]byte{{1}, {2}}, Labels: []string{"a", "b"}, MaxLive: 5, MinOK: 2}, ""},
		{"none", protocol.BranchArgs{}, protocol.CodeInvalidArgument},
		{"too many", protocol.BranchArgs{N: protocol.MaxBranch + 1}, protocol.CodeInvalidArgument},
		{"payloads", protocol.BranchArgs{N: 2, Payloads: [][]byte{{1}}}, protocol.CodeInvalidArgument},
		{"max live", protocol.BranchArgs{N: 2, MaxLive: -1}, protocol.CodeInvalidArgument},
		{"min ok", protocol.BranchArgs{N: 2, MinOK: 3}, protocol.CodeInvalidArgument},
		{"timeout", protocol.BranchArgs{N: 2, Timeout: -1}, protocol.CodeInvalidArgument},
		{"label", protocol.BranchArgs{N: 1, Labels: []string{string(make([]byte, protocol.MaxLabel+1))}}, protocol.CodeTooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if err := sandbox.CheckBranch(tc.args); protocol.CodeOf(err) != tc.want {
				t.Errorf("got %v, want code %q", err, tc.want)
			}
		})
	}
}
