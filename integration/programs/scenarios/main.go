// Command scenarios holds the scenarios of the integration table for the Go
// helper.
//
//	scenarios NAME...
//
// Each prints "== NAME" and what it sees. They run one after another in the
// sandbox's first line; children of branches end inside their scenario. What
// is printed is the same for every helper.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/protocol"
)

var (
	ctx    = context.Background()
	ratoon = client.New(client.Options{})
)

var scenarios = map[string]func(){
	"snapshot": snapshot, "durable": durable, "large": large, "ancestors": ancestors, "cycles": cycles,
	"present": present, "drop": drop, "who": who, "errors": badCalls, "detach": detach, "replaced": replaced,
	"branch": branch, "names": names, "nested": func() { nested(1) }, "waves": waves, "min_ok": minOK,
	"timeout": timeout, "cancel": cancel, "adopt": adopt, "expand": expand, "discard": discard,
	"patience": patience, "exits": exits, "handles": handles,
	"pending": pending, "callers": callers, "survive": survive, "threads": threads, "reasons": reasons,
	"environment": environment, "raw": raw, "unfrozen": unfrozen,
	"over_depth": overDepth, "over_width": func() { overWidth("width", 4) }, "over_live": func() { overWidth("live", 3) },
	"over_memory": func() { overWidth("memory", 2) }, "over_calls": overCalls, "over_disk": overDisk,
	"model": model, "batched": batched, "flight": flight, "siblings": siblings,
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "count" {
		count(os.Args[2])
		return
	}
	for _, name := range os.Args[1:] {
		fmt.Println("==", name)
		scenarios[name]()
	}
}

// show prints values as JSON.
func show(what string, values ...any) {
	words := []string{what}
	for _, v := range values {
		words = append(words, text(v))
	}
	fmt.Println(strings.Join(words, " "))
}

func text(v any) string {
	if value, ok := v.(client.Value); ok {
		v = must(value.Any())
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	check(e.Encode(v))
	return strings.TrimSpace(b.String())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scenarios:", err)
		os.Exit(1)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// code is that of the error a call ends with.
func code(err error) string {
	if err == nil {
		return "ok"
	}
	return string(protocol.CodeOf(err))
}

func results(b *client.Branch) []client.Result {
	all := make([]client.Result, b.N)
	for r, err := range b.AsCompleted(ctx) {
		check(err)
		all[r.Index] = r
	}
	return all
}

func showResults(b *client.Branch) {
	for i, r := range results(b) {
		if r.Err != nil {
			fmt.Println(i, r.Err.Code)
			continue
		}
		show(fmt.Sprint(i), r.Result)
	}
}

// take is a plain snapshot.
func take(label string) client.Checkpoint {
	return must(ratoon.Snapshot(ctx, client.SnapshotOptions{Label: label}))
}

// back restores; it does not return.
func back(id protocol.CheckpointID, opt client.RestoreOptions) client.Checkpoint {
	return must(ratoon.Restore(ctx, id, opt))
}

func fork(n int) *client.Branch { return forkWith(client.BranchOptions{N: n}) }

func forkWith(opt client.BranchOptions) *client.Branch { return must(ratoon.Branch(ctx, opt)) }

// finish ends a child; it does not return.
func finish(result any) {
	must(ratoon.Finish(ctx, client.FinishOptions{Result: result}))
	os.Exit(1)
}

func hang() { time.Sleep(time.Hour) }

func until(condition func() bool) {
	for !condition() {
		time.Sleep(100 * time.Millisecond)
	}
}

func whoami() protocol.WhoamiResult { return must(ratoon.Whoami(ctx)) }

func tree() protocol.TreeResult { return must(ratoon.Tree(ctx)) }

// state is that of the newest timeline with a label.
func state(label string) (s string) {
	for _, t := range tree().Timelines {
		if t.Label == label {
			s = t.State
		}
	}
	return s
}

func newestAuto() (id string) {
	for _, c := range tree().Checkpoints {
		if c.Class == "auto" {
			id = string(c.ID)
		}
	}
	return id
}

// limits are the limits of all budgets.
func limits() map[string]int64 {
	out := map[string]int64{}
	for name, b := range must(ratoon.Budget(ctx)) {
		out[name] = b.Limit
	}
	return out
}
