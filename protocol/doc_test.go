package protocol_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/protocol"
)

const docPath = "../docs/PROTOCOL.md"

// Which end sends a message, in the order of the document.
var (
	hostMessages  = []string{"prepare", "ack-position", "abort", "thaw", "outcome", "attach", "ping"}
	guestMessages = []string{"hello", "call", "call-gone", "drained", "quiesced", "prepare-failed", "thawed", "outcome-ack", "attached", "caller-exited", "pong"}
	linkMessages  = []string{"long"}
)

// calls are the argument and result structs of each kind, "" for none.
var calls = []struct {
	kind         protocol.CallKind
	args, result string
}{
	{protocol.CallSnapshot, "SnapshotArgs", "SnapshotResult"},
	{protocol.CallRestore, "RestoreArgs", "SnapshotResult"},
	{protocol.CallBranch, "BranchArgs", "BranchResult"},
	{protocol.CallFinish, "FinishArgs", "SnapshotResult"},
	{protocol.CallAdopt, "AdoptArgs", "SnapshotResult"},
	{protocol.CallResults, "ResultsArgs", "ResultsResult"},
	{protocol.CallCancel, "CancelArgs", ""},
	{protocol.CallDiscard, "DiscardArgs", ""},
	{protocol.CallLLM, "LLMArgs", "LLMResult"},
	{protocol.CallTree, "", "TreeResult"},
	{protocol.CallWhoami, "", "WhoamiResult"},
	{protocol.CallBudget, "", "BudgetResult"},
	{protocol.CallSync, "", "SyncResult"},
	{protocol.LocalEvents, "", "ResumeEvent"},
}

var limits = map[string]string{
	"MaxControlFrame": size(protocol.MaxControlFrame), "MaxDataFrame": size(protocol.MaxDataFrame), "MaxMessage": size(protocol.MaxMessage),
	"MaxPayload": size(protocol.MaxPayload), "MaxStderrTail": size(protocol.MaxStderrTail), "MaxExecInput": size(protocol.MaxExecInput),
	"MaxDepth": fmt.Sprint(protocol.MaxDepth), "MaxPendingCalls": fmt.Sprint(protocol.MaxPendingCalls), "MaxStreams": fmt.Sprint(protocol.MaxStreams),
	"MaxLabel": fmt.Sprint(protocol.MaxLabel), "MaxBranch": fmt.Sprint(protocol.MaxBranch), "MaxBatch": fmt.Sprint(protocol.MaxBatch),
	"MaxExecUnread": size(protocol.MaxExecUnread), "MaxExecs": fmt.Sprint(protocol.MaxExecs),
	"PrepareDeadline": protocol.PrepareDeadline.String(),
}

func size(n int) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// TestDocument holds the generated parts of the document to the source.
func TestDocument(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(docPath)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for name, want := range tables(t) {
		begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
		head, rest, ok := strings.Cut(text, begin)
		got, tail, ok2 := strings.Cut(rest, end)
		switch {
		case !ok || !ok2:
			t.Errorf("the document has no part %q", name)
		case got != want && *update:
			text = head + begin + want + end + tail
		case got != want:
			t.Errorf("part %q differs from the source; run go test ./protocol -update", name)
		}
	}
	for _, want := range []string{
		fmt.Sprintf("This is version %d.", protocol.Version),
		fmt.Sprintf("port %d for control, %d for bulk", protocol.PortControl, protocol.PortBulk),
		"`" + protocol.SerialControl + "` and `" + protocol.SerialBulk + "`",
		"`" + protocol.GuestSocket + "`",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the document does not say %q", want)
		}
	}
	if *update {
		if err := os.WriteFile(docPath, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func tables(t *testing.T) map[string]string {
	src := sources(t)
	used := make(map[string]bool)
	group := func(names ...string) string {
		var out strings.Builder
		for _, name := range names {
			used[name] = true
			writeStruct(&out, src, "`"+name+"`", name)
		}
		return out.String()
	}
	messages := func(types []string) string {
		var out strings.Builder
		for _, typ := range types {
			name := strings.TrimPrefix(fmt.Sprintf("%T", protocol.Types()[typ]()), "*protocol.")
			used[name] = true
			writeStruct(&out, src, "`"+typ+"`", name)
		}
		return out.String()
	}
	all := map[string]string{
		"messages of the host":  messages(hostMessages),
		"messages of the guest": messages(guestMessages),
		"messages of the link":  messages(linkMessages),
		"shared structs":        group("Key", "Position", "PendingCall", "Identity", "ExitStatus", "ExecOffsets", "Error"),
		"stream structs": group("Open", "Piece", "ExecOpen", "ExecSpec", "ExecFrame", "ExecStarted", "ExecOutput", "ExecInput", "ExecAck", "ExecResize", "ExecExit",
			"FileRequest", "FileFrame", "FileEntry"),
		"local structs": group("LocalRequest", "LocalReply", "ResumeEvent"),
		"codes":         codeTable(src),
		"limits":        limitTable(t, src),
		"budgets":       constTable(src, "Budget"),
		"calls":         callTable(t, src, used, group),
	}
	for name := range src.structs {
		if !used[name] {
			t.Errorf("struct %s is in no part of the document", name)
		}
	}
	if n := len(hostMessages) + len(guestMessages) + len(linkMessages); n != len(protocol.Types()) {
		t.Errorf("%d messages are documented, %d exist", n, len(protocol.Types()))
	}
	return all
}

func writeStruct(out *strings.Builder, src *source, title, name string) {
	s := src.structs[name]
	fmt.Fprintf(out, "\n%s", title)
	if s.doc != "" {
		fmt.Fprintf(out, ": %s", s.doc)
	}
	out.WriteString("\n\n")
	if len(s.fields) == 0 {
		return
	}
	out.WriteString("| field | type | meaning |\n| --- | --- | --- |\n")
	for _, f := range s.fields {
		typ := f.typ
		if f.optional {
			typ = strings.TrimSuffix(typ, " or nil") + ", optional"
		}
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", f.name, typ, f.doc)
	}
}

func codeTable(src *source) string {
	var out strings.Builder
	out.WriteString("\n| code | remedy |\n| --- | --- |\n")
	for _, c := range src.consts["Code"] {
		fmt.Fprintf(&out, "| `%s` | %s |\n", c.value, protocol.Code(c.value).Remedy())
	}
	return out.String()
}

func limitTable(t *testing.T, src *source) string {
	var out strings.Builder
	out.WriteString("\n| limit | value | of what |\n| --- | --- | --- |\n")
	seen := 0
	for _, c := range src.consts[""] {
		if !strings.HasPrefix(c.name, "Max") && c.name != "PrepareDeadline" {
			continue
		}
		if limits[c.name] == "" {
			t.Errorf("limit %s is not in the test's table", c.name)
		}
		seen++
		fmt.Fprintf(&out, "| %s | %s | %s |\n", c.name, limits[c.name], c.doc)
	}
	if seen != len(limits) {
		t.Errorf("%d limits in the source, %d in the test", seen, len(limits))
	}
	return out.String()
}

func constTable(src *source, prefix string) string {
	var out strings.Builder
	out.WriteString("\n| name | meaning |\n| --- | --- |\n")
	for _, c := range src.consts[""] {
		if strings.HasPrefix(c.name, prefix) {
			fmt.Fprintf(&out, "| `%s` | %s |\n", c.value, c.doc)
		}
	}
	return out.String()
}

func callTable(t *testing.T, src *source, used map[string]bool, group func(...string) string) string {
	var out strings.Builder
	out.WriteString("\n| kind | arguments | result |\n| --- | --- | --- |\n")
	var names []string
	for _, c := range calls {
		cell := func(name string) string {
			if name == "" {
				return "nil"
			}
			if !used[name] && !slices.Contains(names, name) && name != "ResumeEvent" {
				names = append(names, name)
			}
			return "`" + name + "`"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", c.kind, cell(c.args), cell(c.result))
	}
	if n := len(src.consts["CallKind"]); n != len(calls) {
		t.Errorf("%d kinds of calls in the source, %d in the test", n, len(calls))
	}
	out.WriteString(group(append(names, "ChildResult", "Completion", "TreeTimeline", "TreeCheckpoint", "Budget")...))
	return out.String()
}
