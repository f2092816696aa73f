package protocol_test

import (
	"math"

	"github.com/ratoon-project/ratoon/protocol"
)

// sample is one golden frame. A protocol.Message is encoded as a message, any
// other struct as a map.
type sample struct {
	name  string
	value any
}

const (
	sandbox    = protocol.SandboxID("sb-aaaaaaaaaaaaaaaa")
	line       = protocol.LineID("ln-bbbbbbbbbbbbbbbb")
	timeline   = protocol.TimelineID("tl-cccccccccccccccc")
	checkpoint = protocol.CheckpointID("cp-dddddddddddddddd")
	stream     = protocol.StreamID("st-eeeeeeeeeeeeeeee")
	branch     = protocol.BranchID("br-ffffffffffffffff")
	execID     = protocol.ExecID("ex-gggggggggggggggg")
)

var (
	key      = protocol.Key{Timeline: timeline, Start: 2, Sequence: 300}
	position = protocol.Position{Stream: stream, Sequence: 70000}
	entropy  = []byte("0123456789abcdef0123456789abcdef")
	failure  = &protocol.Error{Code: protocol.CodeOverBudget, Message: "depth: 4 of 4 used",
		Details: map[string]any{"budget": "depth", "limit": int64(4), "used": int64(4), "over": true, "none": nil,
			"path": []any{"a", int64(-1)}, "stderr": []byte{0xff, 0}}}
)

func ptr[T any](v T) *T { return &v }

// samples has at least one frame of every message, call and stream.
func samples() []sample {
	all := messageSamples()
	all = append(all, callSamples()...)
	all = append(all, resultSamples()...)
	all = append(all, streamSamples()...)
	return append(all, localSamples()...)
}

func messageSamples() []sample {
	return []sample{
		{"prepare", &protocol.Prepare{Freeze: 3, Key: key}},
		{"prepare-by-operator", &protocol.Prepare{Freeze: 3}},
		{"ack-position", &protocol.AckPosition{Freeze: 3, Position: position}},
		{"abort", &protocol.Abort{Freeze: 3, Error: failure}},
		{"thaw", &protocol.Thaw{
			Freeze: 3, Timeline: timeline, Incarnation: 1, Key: key,
			Outcome: &protocol.Outcome{Key: key, Value: []byte{0x80}},
			Stream:  stream, Epoch: 9, Next: 70001, Time: 1735689600000000000, Entropy: entropy,
			Identity: protocol.Identity{Sandbox: sandbox, Node: "0.2.1", Hostname: "ratoon-0-2-1", MachineID: "0123456789abcdef0123456789abcdef",
				NewLine: true, Seed: []byte{1, 2, 3}, Env: map[string]string{"B": "2", "A": "1"}},
			Reason: protocol.ReasonBranch, Slept: 1500000000}},
		{"thaw-restored", &protocol.Thaw{Freeze: 1, Timeline: timeline, Entropy: entropy, Reason: protocol.ReasonRestore,
			Execs: []protocol.ExecOffsets{{ID: execID, Stdout: 3, Stdin: 70000}}}},
		{"thaw-pending", &protocol.Thaw{Freeze: 1, Timeline: timeline, Entropy: entropy, Reason: protocol.ReasonSnapshot}},
		{"outcome", &protocol.Outcome{Key: key, Value: []byte{0xc0}}},
		{"outcome-error", &protocol.Outcome{Key: key, Error: failure}},
		{"attach", &protocol.Attach{Timeline: timeline, Stream: stream, Epoch: 10, Next: 1, Time: 1735689600000000000}},
		{"ping", &protocol.Ping{N: 1}},
		{"ping-largest", &protocol.Ping{N: math.MaxUint64}},
		{"hello", &protocol.Hello{Version: protocol.Version, Release: "0.1.0", Timeline: timeline, Start: 2, State: protocol.StateQuiesced, Freeze: 3,
			Pending: []protocol.PendingCall{{Key: key, Kind: protocol.CallSnapshot}, {Key: key, Kind: protocol.CallLLM}}}},
		{"hello-first", &protocol.Hello{Version: protocol.Version, Start: 1, State: protocol.StateRunning}},
		{"call", &protocol.Call{Key: key, Kind: protocol.CallSnapshot, Arguments: []byte{0x80}}},
		{"call-gone", &protocol.CallGone{Key: key}},
		{"drained", &protocol.Drained{Freeze: 3, Position: position}},
		{"quiesced", &protocol.Quiesced{Freeze: 3, Position: position, Execs: []protocol.ExecOffsets{{ID: execID, Stdout: 1 << 33, Stderr: 128}}}},
		{"quiesced-with-input", &protocol.Quiesced{Freeze: 3, Position: position, Execs: []protocol.ExecOffsets{{ID: execID, Stdin: 1 << 16}}}},
		{"prepare-failed", &protocol.PrepareFailed{Freeze: 3, Error: protocol.Errorf(protocol.CodePrepareFailed, "barrier: 20s passed")}},
		{"thawed", &protocol.Thawed{Freeze: 3, Timeline: timeline}},
		{"outcome-ack", &protocol.OutcomeAck{Key: key}},
		{"attached", &protocol.Attached{Epoch: 10}},
		{"caller-exited", &protocol.CallerExited{Key: key, Status: protocol.ExitStatus{Code: -1, Signal: "SIGKILL"}, Stderr: []byte("killed\n")}},
		{"pong", &protocol.Pong{N: 1}},
		{"long", &protocol.Long{N: 1}},
	}
}

func callSamples() []sample {
	return []sample{
		{"snapshot-args", &protocol.SnapshotArgs{Label: "before rm ☃", Durable: true}},
		{"snapshot-args-empty", &protocol.SnapshotArgs{}},
		{"restore-args", &protocol.RestoreArgs{ID: checkpoint, Payload: []byte{0x01}, DropPresent: true, Detach: true}},
		{"branch-args", &protocol.BranchArgs{N: 2, Payloads: [][]byte{{0xc0}, {}}, MaxLive: 1, At: checkpoint,
			Env: []map[string]string{{"K": "v"}, {}}, Labels: []string{"left", "right"}, Timeout: 60000000000, MinOK: 1}},
		{"branch-args-least", &protocol.BranchArgs{N: 4}},
		{"finish-args", &protocol.FinishArgs{Result: []byte{0xa2, 'o', 'k'}, Keep: true}},
		{"adopt-args", &protocol.AdoptArgs{Branch: branch, Index: 1, Payload: []byte{0x01}}},
		{"results-args", &protocol.ResultsArgs{Branch: branch, Have: []int{0, 127, 128, 1023}, Timeout: -1}},
		{"cancel-args", &protocol.CancelArgs{Branch: branch, Index: 1}},
		{"discard-args", &protocol.DiscardArgs{Branch: branch}},
		{"llm-args", &protocol.LLMArgs{Prompts: []string{"", "why?"}, Model: "m"}},
	}
}

func resultSamples() []sample {
	return []sample{
		{"snapshot-result", &protocol.SnapshotResult{ID: checkpoint}},
		{"snapshot-result-restored", &protocol.SnapshotResult{ID: checkpoint, Restored: true, Index: ptr(0), Branch: branch, Payload: []byte{0x01}}},
		{"branch-result-parent", &protocol.BranchResult{ID: branch, Checkpoint: checkpoint, N: 4}},
		{"branch-result-child", &protocol.BranchResult{ID: branch, Checkpoint: checkpoint, Index: ptr(3), N: 4, Payload: []byte{0xc0}}},
		{"results-result", &protocol.ResultsResult{Results: []protocol.ChildResult{
			{Index: 0, Result: []byte{0xa2, 'o', 'k'}, Checkpoint: checkpoint}, {Index: 1, Error: failure}}}},
		{"results-result-none", &protocol.ResultsResult{Results: []protocol.ChildResult{}}},
		{"llm-result", &protocol.LLMResult{Completions: []protocol.Completion{
			{Text: "because", PromptTokens: 3, CompletionTokens: 1}, {Error: protocol.Errorf(protocol.CodeModelFailed, "429")}}}},
		{"tree-result", &protocol.TreeResult{Sandbox: sandbox, State: "running",
			Timelines:   []protocol.TreeTimeline{{ID: timeline, Line: line, Node: "0", Origin: checkpoint, State: "stopped", Reason: "vm died", Label: "x"}},
			Checkpoints: []protocol.TreeCheckpoint{{ID: checkpoint, Timeline: timeline, Label: "l", Class: "named", Durable: true, Created: 1735689600000000000, Bytes: 65536}}}},
		{"whoami-result", &protocol.WhoamiResult{Sandbox: sandbox, Timeline: timeline, Line: line, Node: "0.1", Depth: 1, Origin: checkpoint,
			Branch: branch, Index: ptr(1), Label: "l", Env: map[string]string{"K": "v"}}},
		{"budget-result", &protocol.BudgetResult{Budgets: map[string]protocol.Budget{protocol.BudgetDepth: {Limit: -1, Used: 32768}}}},
		{"sync-result", &protocol.SyncResult{Position: position}},
	}
}

func streamSamples() []sample {
	return []sample{
		{"open-message", &protocol.Open{Op: protocol.OpMessage, Message: 1}},
		{"open-exec", &protocol.Open{Op: protocol.OpExec, Exec: &protocol.ExecOpen{ID: execID, Start: &protocol.ExecSpec{
			Argv: []string{"sh", "-c", "true"}, Env: map[string]string{"TERM": "dumb"}, Dir: "/workspace", User: "root",
			TTY: true, Rows: 24, Columns: 80, Stdin: true, Timeout: 1000000000}}}},
		{"open-attach", &protocol.Open{Op: protocol.OpExec, Exec: &protocol.ExecOpen{ID: execID, Stdout: 4096, Stderr: 1}}},
		{"open-files", &protocol.Open{Op: protocol.OpFiles, File: &protocol.FileRequest{Op: "put", Path: "/workspace/a", Mode: 0o644, UID: 1000, GID: 1000, Whole: true}}},
		{"piece", &protocol.Piece{Data: []byte{0, 1, 2}, Last: true}},
		{"exec-started", &protocol.ExecFrame{Started: &protocol.ExecStarted{PID: 12, Stdin: 0}}},
		{"exec-output", &protocol.ExecFrame{Output: &protocol.ExecOutput{Stream: "stdout", Offset: 4096, Data: []byte("hi\n")}}},
		{"exec-taken", &protocol.ExecFrame{Taken: ptr(uint64(5))}},
		{"exec-exit", &protocol.ExecFrame{Exit: &protocol.ExecExit{Status: protocol.ExitStatus{Code: 137}, TimedOut: true, Stdout: 3, Stderr: 0}}},
		{"exec-error", &protocol.ExecFrame{Error: protocol.Errorf(protocol.CodeNotFound, "no program")}},
		{"exec-input", &protocol.ExecFrame{Input: &protocol.ExecInput{Offset: 0, Data: []byte("x"), End: true}}},
		{"exec-ack", &protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: 3, Stderr: 0}}},
		{"exec-signal", &protocol.ExecFrame{Signal: "SIGTERM"}},
		{"exec-resize", &protocol.ExecFrame{Resize: &protocol.ExecResize{Rows: 50, Columns: 132}}},
		{"file-data", &protocol.FileFrame{Data: []byte("content"), End: true}},
		{"file-done", &protocol.FileFrame{Done: true, Entries: []protocol.FileEntry{
			{Name: "a", Mode: 0o100644, Size: 7, MTime: 1735689600000000000, UID: 1000, GID: 1000}, {Name: "l", Mode: 0o120777, Target: "a"}}}},
	}
}

func localSamples() []sample {
	return []sample{
		{"local-request", &protocol.LocalRequest{Version: protocol.Version, Kind: protocol.CallSnapshot, Arguments: []byte{0x80}, Watch: 42}},
		{"local-request-events", &protocol.LocalRequest{Version: protocol.Version, Kind: protocol.LocalEvents}},
		{"local-reply", &protocol.LocalReply{Value: []byte{0x80}, Resume: &protocol.ResumeEvent{
			Reason: protocol.ReasonRestore, Timeline: timeline, Node: "0", Slept: 1500000000, Entropy: entropy, Seed: []byte{1}, Count: 2, Lost: []string{"workspace"}}}},
		{"local-reply-error", &protocol.LocalReply{Error: failure}},
	}
}
