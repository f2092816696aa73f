package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/protocol"
)

func snapshot() {
	count := 1
	cp := take("first")
	if !cp.Restored {
		show("taken", cp.Payload)
		count++
		check(os.WriteFile("/workspace/later", []byte("x"), 0o600))
		back(cp.ID, client.RestoreOptions{Payload: map[string]any{"tried": "a", "n": 1}})
	}
	_, err := os.Stat("/workspace/later")
	show("restored", cp.Payload, count, err == nil)
}

func durable() {
	cp := must(ratoon.Snapshot(ctx, client.SnapshotOptions{Label: "lasting", Durable: true}))
	if !cp.Restored {
		for _, c := range tree().Checkpoints {
			if c.ID == cp.ID {
				show("durable", c.Durable, c.Label)
			}
		}
		back(cp.ID, client.RestoreOptions{})
	}
	show("restored", cp.Payload)
}

func large() {
	const size = 2 << 20
	cp := take("")
	if !cp.Restored {
		back(cp.ID, client.RestoreOptions{Payload: strings.Repeat("x", size)})
	}
	show("payload", must(cp.Payload.Any()) == strings.Repeat("x", size))
	b := forkWith(client.BranchOptions{N: 1, Payloads: []any{strings.Repeat("y", size)}})
	if b.Index != nil {
		finish(b.Payload)
	}
	show("result", must(results(b)[0].Result.Any()) == strings.Repeat("y", size))
}

func ancestors() {
	root := take("root")
	if root.Restored {
		if whoami().Index != nil {
			finish(map[string]any{"at": "root", "payload": must(root.Payload.Any())})
		}
		show("root", root.Payload)
		return
	}
	mid := take("mid")
	if mid.Restored {
		if whoami().Index != nil {
			finish(map[string]any{"at": "mid", "payload": must(mid.Payload.Any())})
		}
		show("mid", mid.Payload)
		back(root.ID, client.RestoreOptions{Payload: "second"})
	}
	b := fork(2)
	if b.Index != nil {
		back([]protocol.CheckpointID{root.ID, mid.ID}[*b.Index], client.RestoreOptions{Payload: *b.Index})
	}
	showResults(b)
	back(mid.ID, client.RestoreOptions{Payload: "first"})
}

func cycles() {
	total, payload := 0, 0
	for i := range 20 {
		cp := take(fmt.Sprint("round ", i))
		if !cp.Restored {
			back(cp.ID, client.RestoreOptions{Payload: i, DropPresent: i%2 == 1})
		}
		check(cp.Payload.Decode(&payload))
		total += payload
	}
	show("sum", total)
	cp := take("again and again")
	rounds := 0
	check(cp.Payload.Decode(&rounds))
	if rounds < 3 {
		back(cp.ID, client.RestoreOptions{Payload: rounds + 1, DropPresent: true})
	}
	show("rounds", rounds)
}

func present() {
	cp := take("")
	if !cp.Restored {
		kept := back(cp.ID, client.RestoreOptions{Payload: "go"})
		show("present", kept.Restored, kept.Payload)
		return
	}
	show("restored", cp.Payload)
	back(protocol.CheckpointID(newestAuto()), client.RestoreOptions{Payload: "back"})
}

func drop() {
	cp := take("")
	if !cp.Restored {
		back(cp.ID, client.RestoreOptions{Payload: newestAuto(), DropPresent: true})
	}
	show("kept nothing", newestAuto() == must(cp.Payload.Any()))
}

func who() {
	w, t := whoami(), tree()
	b := must(ratoon.Budget(ctx))
	var live []string
	for _, x := range t.Timelines {
		if x.State == "live" {
			live = append(live, x.Node)
		}
	}
	show("whoami", w.Node, w.Depth, w.Index, w.Label)
	show("tree", t.Sandbox == w.Sandbox, t.State, live)
	for _, name := range []string{"depth", "live", "memory"} {
		show(name, b[name].Limit, b[name].Used)
	}
	must(ratoon.Sync(ctx))
	show("synced")
}

func badCalls() {
	restore := func(id string) string {
		_, err := ratoon.Restore(ctx, protocol.CheckpointID(id), client.RestoreOptions{})
		return code(err)
	}
	branch := func(opt client.BranchOptions) string {
		_, err := ratoon.Branch(ctx, opt)
		return code(err)
	}
	const unknown = "cp-aaaaaaaaaaaaaaaa"
	show("restore unknown", restore(unknown))
	show("restore path", restore("../../etc/passwd"))
	show("restore nothing", restore(""))
	show("branch 0", branch(client.BranchOptions{}))
	show("branch -1", branch(client.BranchOptions{N: -1}))
	show("branch 1025", branch(client.BranchOptions{N: 1025}))
	show("branch payloads", branch(client.BranchOptions{N: 2, Payloads: []any{1}}))
	show("branch min_ok", branch(client.BranchOptions{N: 2, MinOK: 3}))
	show("branch at", branch(client.BranchOptions{N: 1, At: unknown}))
	_, err := ratoon.Handle("br-aaaaaaaaaaaaaaaa", 1).Results(ctx, nil)
	show("results unknown", code(err))
	_, err = ratoon.Snapshot(ctx, client.SnapshotOptions{Label: strings.Repeat("x", 257)})
	show("label", code(err))
	_, err = ratoon.LLMQuery(ctx, "hello", "")
	show("model", code(err))
}

func detach() {
	cp := take("before")
	if cp.Restored {
		show("child", state("loner"))
		take("seen")
		until(func() bool { return state("loner") == "ended" })
		show("then", state("loner"))
		return
	}
	b := forkWith(client.BranchOptions{N: 1, Labels: []string{"loner"}})
	if b.Index != nil {
		until(func() bool {
			for _, c := range tree().Checkpoints {
				if c.Label == "seen" {
					return true
				}
			}
			return false
		})
		finish("nobody asks")
	}
	back(cp.ID, client.RestoreOptions{Detach: true})
}

func replaced() {
	cp := take("")
	if cp.Restored {
		show("child", state("orphan"))
		return
	}
	b := forkWith(client.BranchOptions{N: 1, Labels: []string{"orphan"}})
	if b.Index != nil {
		hang()
	}
	back(cp.ID, client.RestoreOptions{})
}

func reasons() {
	events := make(chan string, 16)
	stop := must(ratoon.OnResume(ctx, func(e client.Event) { events <- string(e.Reason) }))
	defer stop()
	var seen []string
	next := func() []string { seen = append(seen, <-events); return seen }
	cp := take("")
	if !cp.Restored {
		show("taken", next())
		back(cp.ID, client.RestoreOptions{})
	}
	show("restored", next())
	b := fork(1)
	if b.Index != nil {
		finish(next())
	}
	show("parent", next())
	showResults(b)
}
