package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The helpers that every scenario is run by.
const (
	inPython = "python"
	inGo     = "go"
	inShell  = "shell"
)

var helpers = []string{inPython, inGo, inShell}

// scenario is what a guest program does and what it then prints, the same for
// every helper. The programs are programs/scenarios.py, .sh and scenarios/.
type scenario struct {
	name string
	want string
	// not says why a helper cannot do it.
	not map[string]string
}

// group is a list of scenarios that run one after another in one sandbox.
type group struct {
	name      string
	flags     []string
	model     bool
	scenarios []scenario
}

var noThreads = map[string]string{inShell: "a shell has no threads and no sockets"}

var table = []group{
	{name: "checkpoints", scenarios: []scenario{
		{name: "who", want: `
whoami "0" 0 null ""
tree true "running" ["0"]
depth 16 0
live 32 1
memory -1 268435456
synced`},
		{name: "snapshot", want: `
taken null
restored {"n":1,"tried":"a"} 1 false`},
		{name: "durable", want: `
durable true "lasting"
restored null`},
		{name: "large", want: `
payload true
result true`},
		{name: "ancestors", want: `
0 {"at":"root","payload":0}
1 {"at":"mid","payload":1}
mid "first"
root "second"`},
		{name: "present", want: `
restored "go"
present true "back"`},
		{name: "drop", want: `
kept nothing true`},
		{name: "detach", want: `
child "live"
then "ended"`},
		{name: "replaced", want: `
child "ended"`},
		{name: "reasons", not: map[string]string{inShell: "a shell has no callbacks"}, want: `
taken ["snapshot"]
restored ["restore"]
parent ["restore","branch"]
0 ["restore","branch"]`},
		{name: "errors", want: `
restore unknown "unknown_checkpoint"
restore path "invalid_argument"
restore nothing "invalid_argument"
branch 0 "invalid_argument"
branch -1 "invalid_argument"
branch 1025 "invalid_argument"
branch payloads "invalid_argument"
branch min_ok "invalid_argument"
branch at "unknown_checkpoint"
results unknown "not_found"
label "too_large"
model "no_model"`},
	}},
	{name: "cycles", scenarios: []scenario{
		{name: "cycles", want: `
sum 190
rounds 3`},
	}},
	{name: "branches", scenarios: []scenario{
		{name: "branch", want: `
parent null 3 null
0 {"index":0,"n":3,"payload":"red"}
1 {"index":1,"n":3,"payload":{"green":[1,2]}}
2 {"index":2,"n":3,"payload":null}`},
		{name: "names", want: `
0 {"env":{"SIDE":"l"},"index":0,"label":"left"}
1 {"env":{"SIDE":"r"},"index":1,"label":"right"}`},
		{name: "nested", want: `
depths [6,5,4,3,2,1]`},
		{name: "waves", want: `
0 true
1 true
2 true
3 true`},
		{name: "min_ok", want: `
0 0
1 1`},
		{name: "timeout", want: `
0 timeout
1 "in time"`},
		{name: "cancel", want: `
0 cancelled
1 "done"`},
		{name: "adopt", want: `
0 0
1 1
adopted "memory of 1" true "come" "0"`},
		{name: "expand", want: `
0 ["start","a"]
1 ["start","b"]
0 ["start","c"]
0 ["start","c","d"]
0 ["point",true,"e"]
1 ["point",true,"f"]`},
		{name: "discard", want: `
0 0
1 1
not kept "not_kept"
discarded "not_kept"`},
		{name: "patience", want: `
waited "timeout"
0 cancelled`},
		{name: "exits", want: `
0 child_exited "" 3 "oh no\n"
1 child_exited "SIGKILL" -1 ""
2 child_exited "" 0 ""`},
		{name: "handles", want: `
0 ["wrong_timeline"]
restored "wrong_timeline"`},
	}},
	{name: "machine", scenarios: []scenario{
		{name: "pending", want: `
0 "interrupted_by_fork"
pending true
outcome "cancelled"`},
		{name: "callers", want: `
made ["caller 0","caller 1"]`},
		{name: "survive", want: `
before ["1 first","1 first"]
parent ["2 parent","2 parent"]
0 ["2 child 0","2 child 0"]
1 ["2 child 1","2 child 1"]
restored ["2 again","2 again"]`},
		{name: "threads", not: noThreads, want: `
before ["1 first","1 first"]
parent ["2 parent","2 parent"]
0 ["2 child 0","2 child 0"]
1 ["2 child 1","2 child 1"]
restored ["2 again","2 again"]`},
		{name: "environment", want: `
same true`},
		{name: "raw", not: map[string]string{inShell: "a shell cannot speak to a unix socket"}, want: `
garbage "protocol_violation"
huge "too_large"
cut "closed"
version "version_mismatch"
kind "not_supported"
arguments "invalid_argument"
forged "unknown_checkpoint"
same true`},
		{name: "patched", not: map[string]string{inGo: "its helper has nothing that a program could change", inShell: "its helper is a process of its own"}, want: `
branch "invalid_argument"
label "too_large"
same true`},
	}},
	{name: "budgets", flags: []string{"--max-depth", "1", "--max-width", "3", "--max-live", "3", "--max-memory", "512M", "--max-disk", "64M", "--llm", "echo", "--llm-budget", "2"},
		scenarios: []scenario{
			{name: "over_depth", want: `
0 "over_budget"`},
			{name: "over_width", want: `
width over_budget over budget: branch(4), limit of width 3`},
			{name: "over_live", want: `
live over_budget over budget: 1 machines run, 3 more would exceed the limit of 3`},
			{name: "over_memory", want: `
memory over_budget over budget: 3 machines of 268435456 bytes would exceed the memory limit of 536870912`},
			{name: "over_calls", want: `
first "one"
second "two"
third over_budget over budget: 2 model calls made, limit 2`},
			{name: "unfrozen", not: map[string]string{inShell: "a shell is not told of thaws"}, want: `
stopped []`},
			{name: "over_disk", want: `
disk "over_budget" true`},
		}},
	{name: "models", model: true, scenarios: []scenario{
		{name: "model", want: `
answer "default: hello"
named "other: hello"
failed "model_failed"`},
		{name: "batched", not: map[string]string{inShell: "agentd call asks one prompt at a time"}, want: `
answers ["default: a","default: b","default: c"]`},
		{name: "flight", want: `
0 ["interrupted_by_fork"]
parent ["default: hold"]`},
		{name: "siblings", want: `
0 "default: sibling 0"
1 "default: sibling 1"
2 "default: sibling 2"
3 "default: sibling 3"
4 "default: sibling 4"
5 "default: sibling 5"
6 "default: sibling 6"
7 "default: sibling 7"
calls %d`},
	}},
}

// TestScenarios runs each group once per helper: -run TestScenarios/go/branches.
func TestScenarios(t *testing.T) {
	for _, helper := range helpers {
		t.Run(helper, func(t *testing.T) {
			for _, g := range table {
				t.Run(g.name, func(t *testing.T) {
					t.Parallel()
					runGroup(t, helper, g)
				})
			}
		})
	}
}

// TestEveryOmissionHasAReason keeps the table honest.
func TestEveryOmissionHasAReason(t *testing.T) {
	for _, g := range table {
		for _, s := range g.scenarios {
			for helper, why := range s.not {
				if !slices.Contains(helpers, helper) || why == "" || len(s.not) == len(helpers) {
					t.Errorf("%s/%s: not by %q: %q", g.name, s.name, helper, why)
				}
				t.Logf("%s is not run in %s: %s", s.name, helper, why)
			}
		}
	}
}

func runGroup(t *testing.T, helper string, g group) {
	var names []string
	for _, s := range g.scenarios {
		if s.not[helper] == "" {
			names = append(names, s.name)
		}
	}
	o := options{flags: g.flags}
	var model *upstream
	if g.model {
		model = newUpstream(t)
		o.env, o.flags = model.options().env, model.options().flags
	}
	r := runProgram(t, helper, o, names)
	got := sections(r.stdout)
	for _, s := range g.scenarios {
		if s.not[helper] != "" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			want := strings.TrimSpace(s.want)
			if strings.Contains(want, "%d") {
				want = fmt.Sprintf(want, model.total())
			}
			out, ran := got[s.name]
			if !ran {
				t.Fatal("the program ended before this scenario")
			}
			if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(out, "\n")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	if r.status != 0 || r.stderr != "" {
		t.Errorf("status %d, standard error: %s", r.status, r.stderr)
	}
	if model != nil && model.count("hold") != 1 {
		t.Errorf("the model was asked %d times for what was in flight at a branch, want 1", model.count("hold"))
	}
}

// runProgram runs scenarios in a helper's language.
func runProgram(t *testing.T, helper string, o options, names []string) result {
	t.Helper()
	switch helper {
	case inPython:
		return run(t, o, python(t, "scenarios.py", names...)...)
	case inShell:
		return run(t, o, append([]string{"sh", "-c", source(t, "scenarios.sh"), "sh"}, names...)...)
	}
	program, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	o.stdin = program
	return run(t, o, append([]string{"sh", "-c", `cat >/tmp/p && chmod +x /tmp/p && exec /tmp/p "$@" </dev/null`, "sh"}, names...)...)
}

// sections splits what the programs print.
func sections(out string) map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq("\n"+out, "\n== ") {
		name, text, _ := strings.Cut(part, "\n")
		all[name] = strings.TrimSpace(text)
	}
	return all
}
