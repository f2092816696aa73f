package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/protocol"
)

func branch() {
	b := forkWith(client.BranchOptions{N: 3, Payloads: []any{"red", map[string]any{"green": []int{1, 2}}, nil}})
	if b.Index != nil {
		finish(map[string]any{"index": *b.Index, "n": b.N, "payload": must(b.Payload.Any())})
	}
	show("parent", b.Index, b.N, b.Payload)
	showResults(b)
}

func names() {
	b := forkWith(client.BranchOptions{N: 2, Labels: []string{"left", "right"}, Env: []map[string]string{{"SIDE": "l"}, {"SIDE": "r"}}})
	if b.Index != nil {
		w := whoami()
		finish(map[string]any{"env": w.Env, "index": w.Index, "label": w.Label})
	}
	showResults(b)
}

func nested(level int) {
	b := fork(1)
	if b.Index != nil {
		if level < 6 {
			nested(level + 1)
		}
		finish([]any{whoami().Depth})
	}
	depths := []any{}
	r := results(b)[0]
	if r.Err != nil {
		depths = append(depths, r.Err.Code)
	} else {
		check(r.Result.Decode(&depths))
	}
	if level > 1 {
		finish(append(depths, whoami().Depth))
	}
	show("depths", depths)
}

func waves() {
	b := forkWith(client.BranchOptions{N: 4, MaxLive: 2})
	if b.Index != nil {
		live := 0
		for _, t := range tree().Timelines {
			if t.State == "live" {
				live++
			}
		}
		finish(live <= 3)
	}
	showResults(b)
}

func minOK() {
	b := forkWith(client.BranchOptions{N: 2, MinOK: 1})
	if b.Index != nil {
		finish(*b.Index)
	}
	showResults(b)
}

func timeout() {
	b := forkWith(client.BranchOptions{N: 2, Timeout: 6 * time.Second})
	if b.Index != nil && *b.Index == 0 {
		hang()
	}
	if b.Index != nil {
		finish("in time")
	}
	showResults(b)
}

func cancel() {
	b := fork(2)
	if b.Index != nil && *b.Index == 0 {
		hang()
	}
	if b.Index != nil {
		finish("done")
	}
	check(b.Cancel(ctx, 0))
	showResults(b)
}

func adopt() {
	b := fork(2)
	if b.Index != nil {
		mine := fmt.Sprint("memory of ", *b.Index)
		cp := must(ratoon.Finish(ctx, client.FinishOptions{Result: *b.Index, Keep: true}))
		show("adopted", mine, cp.Restored, cp.Payload, whoami().Node)
		return
	}
	showResults(b)
	must(b.Adopt(ctx, 1, "come"))
}

func expand() {
	b := fork(1)
	if b.Index != nil {
		seen := []any{"start"}
		for {
			cp := must(ratoon.Finish(ctx, client.FinishOptions{Result: seen, Keep: true}))
			seen = append(seen, must(cp.Payload.Any()))
		}
	}
	at := results(b)[0].Checkpoint
	for _, payloads := range [][]any{{"a", "b"}, {"c"}} {
		b = forkWith(client.BranchOptions{N: len(payloads), At: at, Payloads: payloads})
		showResults(b)
	}
	at = results(b)[0].Checkpoint
	showResults(forkWith(client.BranchOptions{N: 1, At: at, Payloads: []any{"d"}}))
	cp := take("point")
	if cp.Index != nil {
		finish([]any{"point", cp.Restored, must(cp.Payload.Any())})
	}
	showResults(forkWith(client.BranchOptions{N: 2, At: cp.ID, Payloads: []any{"e", "f"}}))
}

func discard() {
	b := fork(2)
	if b.Index != nil {
		must(ratoon.Finish(ctx, client.FinishOptions{Result: *b.Index, Keep: *b.Index == 1}))
	}
	showResults(b)
	_, err := b.Adopt(ctx, 0, nil)
	show("not kept", code(err))
	check(b.Discard(ctx))
	_, err = b.Adopt(ctx, 1, nil)
	show("discarded", code(err))
}

func patience() {
	b := fork(1)
	if b.Index != nil {
		hang()
	}
	soon, done := context.WithTimeout(ctx, 300*time.Millisecond)
	defer done()
	for _, err := range b.AsCompleted(soon) {
		show("waited", code(err))
	}
	check(b.Cancel(ctx, 0))
	showResults(b)
}

func exits() {
	b := fork(3)
	if b.Index != nil {
		switch *b.Index {
		case 0:
			fmt.Fprintln(os.Stderr, "oh no")
			os.Exit(3)
		case 1:
			check(syscall.Kill(os.Getpid(), syscall.SIGKILL))
			hang()
		}
		os.Exit(0)
	}
	for i, r := range results(b) {
		d := r.Err.Details
		show(fmt.Sprint(i, " ", r.Err.Code), d["signal"], d["status"], d["stderr"])
	}
}

func handles() {
	b := fork(1)
	if b.Index != nil {
		finish([]string{code(ratoon.Handle(b.ID, 1).Cancel(ctx, 0))})
	}
	showResults(b)
	cp := take("")
	if !cp.Restored {
		back(cp.ID, client.RestoreOptions{})
	}
	show("restored", code(b.Cancel(ctx, 0)))
}

func overDepth() {
	b := fork(1)
	if b.Index != nil {
		_, err := ratoon.Branch(ctx, client.BranchOptions{N: 1})
		finish(code(err))
	}
	showResults(b)
}

func overWidth(what string, n int) {
	_, err := ratoon.Branch(ctx, client.BranchOptions{N: n})
	showError(what, err)
}

// showError prints what the host says.
func showError(what string, err error) {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		fmt.Println(what, e.Code, e.Message)
		return
	}
	fmt.Println(what, code(err))
}

func overCalls() {
	show("first", must(ratoon.LLMQuery(ctx, "one", "")))
	show("second", must(ratoon.LLMQuery(ctx, "two", "")))
	_, err := ratoon.LLMQuery(ctx, "three", "")
	showError("third", err)
}

func overDisk() {
	last, made := "ok", 0
	for ; last == "ok" && made < 50; made++ {
		_, err := ratoon.Snapshot(ctx, client.SnapshotOptions{})
		last = code(err)
	}
	show("disk", last, made > 1)
}
