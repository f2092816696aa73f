package call_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/guest/call"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// agent answers every request by f.
func agent(t *testing.T, f func(protocol.LocalRequest) protocol.LocalReply) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ca")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var req protocol.LocalRequest
			if wire.ReadFrame(conn, &req, protocol.MaxMessage) == nil {
				wire.WriteFrame(conn, f(req), protocol.MaxMessage)
			}
			conn.Close()
		}
	}()
	return path
}

func value(t *testing.T, v any) []byte {
	t.Helper()
	b, err := wire.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func run(t *testing.T, in string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = call.Run(context.Background(), args, call.IO{In: strings.NewReader(in), Out: &o, Err: &e})
	return code, o.String(), e.String()
}

func TestBranch(t *testing.T) {
	t.Parallel()
	nasty := "it's $(rm -rf /) `x`\nsecond \"line\""
	var got protocol.BranchArgs
	watch := 0
	one := 1
	socket := agent(t, func(r protocol.LocalRequest) protocol.LocalReply {
		watch = r.Watch
		if err := wire.Unmarshal(r.Arguments, &got); err != nil {
			return protocol.LocalReply{Error: protocol.AsError(err)}
		}
		return protocol.LocalReply{Value: value(t, protocol.BranchResult{ID: "br-x", Index: &one, N: 2, Payload: value(t, nasty)})}
	})
	code, out, errs := run(t, "", "--socket", socket, "--format", "env", "branch", "--max-live", "1", "--timeout", "90s", "--payloads", `[1,{"a":1.5}]`,
		"--labels", `["l","r"]`, "--env", `[{},{"SIDE":"r"}]`, "2")
	if code != call.ExitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if got.N != 2 || got.MaxLive != 1 || got.Timeout != 90e9 || len(got.Payloads) != 2 || watch != os.Getppid() || len(got.Labels) != 2 || got.Labels[1] != "r" || len(got.Env) != 2 || got.Env[1]["SIDE"] != "r" {
		t.Errorf("arguments %+v, watch %d", got, watch)
	}
	// A shell must get exactly the payload back.
	cmd := exec.Command("sh", "-c", `eval "$1"; printf '%s|%s|%s' "$RATOON_INDEX" "$RATOON_BRANCH" "$RATOON_PAYLOAD"`, "sh", out)
	shell, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("eval: %v\n%s", err, shell)
	}
	if want := `1|br-x|"it's $(rm -rf /) ` + "`x`" + `\nsecond \"line\""`; string(shell) != want {
		t.Errorf("the shell has %s, want %s", shell, want)
	}
	if _, out, _ := run(t, "", "--socket", socket, "branch", "2"); !strings.HasPrefix(out, `{"id":"br-x","checkpoint":"","index":1,"n":2,"payload":"it's`) {
		t.Errorf("JSON: %s", out)
	}
}

func TestParentHasAnEmptyIndex(t *testing.T) {
	t.Parallel()
	socket := agent(t, func(protocol.LocalRequest) protocol.LocalReply {
		return protocol.LocalReply{Value: value(t, protocol.BranchResult{ID: "br-x", N: 2})}
	})
	if _, out, _ := run(t, "", "--socket", socket, "--format", "env", "branch", "2"); !strings.Contains(out, "RATOON_INDEX=''\n") || !strings.Contains(out, "RATOON_PAYLOAD='null'\n") {
		t.Errorf("variables: %s", out)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	var answer protocol.LocalReply
	socket := agent(t, func(protocol.LocalRequest) protocol.LocalReply { return answer })
	const id = "br-aaaaaaaaaaaaaaaa"
	for _, c := range []struct {
		args   string
		answer protocol.LocalReply
		want   int
	}{
		{"tree", protocol.LocalReply{Value: value(t, protocol.TreeResult{})}, call.ExitOK},
		{"tree", protocol.LocalReply{Error: protocol.Errorf(protocol.CodeOverBudget, "no")}, call.ExitFailed},
		{"snapshot", protocol.LocalReply{Error: protocol.Errorf(protocol.CodeInterruptedByFork, "no")}, call.ExitInterrupted},
		{"snapshot", protocol.LocalReply{Error: protocol.Errorf(protocol.CodeAgentRestarted, "no")}, call.ExitUnavailable},
		{"results " + id, protocol.LocalReply{Value: value(t, protocol.ResultsResult{})}, call.ExitNothing},
		{"results " + id, protocol.LocalReply{Value: value(t, protocol.ResultsResult{Results: []protocol.ChildResult{{Index: 1}}})}, call.ExitOK},
		{"results nonsense", protocol.LocalReply{}, call.ExitUsage},
		{"fly", protocol.LocalReply{}, call.ExitUsage},
		{"", protocol.LocalReply{}, call.ExitUsage},
		{"branch 0", protocol.LocalReply{}, call.ExitUsage},
		{"branch --payloads [1] 2", protocol.LocalReply{}, call.ExitUsage},
		{"branch --labels [1] 1", protocol.LocalReply{}, call.ExitUsage},
		{`branch --env [{"A":"b"}] 2`, protocol.LocalReply{}, call.ExitUsage},
		{"finish {bad", protocol.LocalReply{}, call.ExitUsage},
		{"finish {} {}", protocol.LocalReply{}, call.ExitUsage},
		{"--format xml tree", protocol.LocalReply{}, call.ExitUsage},
		{"--help", protocol.LocalReply{}, call.ExitOK},
		{"tree --help", protocol.LocalReply{}, call.ExitOK},
	} {
		answer = c.answer
		code, _, errs := run(t, "", append([]string{"--socket", socket}, strings.Fields(c.args)...)...)
		if code != c.want {
			t.Errorf("%s: exit %d, want %d: %s", c.args, code, c.want, errs)
		}
		if (code == call.ExitOK) != (errs == "") {
			t.Errorf("%s: exit %d with standard error %q", c.args, code, errs)
		}
	}
}

func TestEveryCallIsInTheHelp(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"snapshot", "restore", "branch", "finish", "adopt", "results", "cancel", "discard", "llm-query", "tree", "whoami", "budget", "sync"} {
		if !strings.Contains(call.Usage, name) {
			t.Errorf("--help has no %s", name)
		}
	}
}

func TestPromptFromStandardInput(t *testing.T) {
	t.Parallel()
	socket := agent(t, func(r protocol.LocalRequest) protocol.LocalReply {
		var a protocol.LLMArgs
		wire.Unmarshal(r.Arguments, &a)
		return protocol.LocalReply{Value: value(t, protocol.LLMResult{Completions: []protocol.Completion{{Text: strings.ToUpper(a.Prompts[0])}}})}
	})
	if code, out, errs := run(t, "hello", "--socket", socket, "llm-query"); code != 0 || out != "{\"text\":\"HELLO\"}\n" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}
