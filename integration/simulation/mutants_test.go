package simulation_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// patch replaces a text that stands once in a source file.
type patch struct{ file, old, new string }

// mutant is one of docs/model/mutants.json. In the replacement, MUTANT stands
// for a condition that is true while this mutant is on.
type mutant struct {
	patches []patch
	// why there is nothing to apply it to.
	impossible string
}

const (
	inBranch   = "host/sandbox/branch.go"
	inCalls    = "host/sandbox/calls.go"
	inCommit   = "host/sandbox/commit.go"
	inCopies   = "host/sandbox/copies.go"
	inEnds     = "host/sandbox/ends.go"
	inFinish   = "host/sandbox/finish.go"
	inMove     = "host/sandbox/move.go"
	inRecover  = "host/sandbox/recover.go"
	inRestore  = "host/sandbox/restore.go"
	inSettle   = "host/sandbox/settle.go"
	inSnapshot = "host/sandbox/snapshot.go"
	inTimeline = "host/sandbox/timeline.go"
	inMachine  = "guest/agent/machine.go"
	inQuiesce  = "guest/agent/quiesce.go"
	inThaw     = "guest/agent/thaw.go"
)

// before puts a statement in front of a text.
func before(file, text, statement string) patch {
	return patch{file, text, statement + "\n" + text}
}

var mutants = map[string]mutant{
	"payload-not-recorded": {patches: []patch{
		before(inBranch, "	return errors.Join(branches.put(tx, string(rec.ID), rec), lines.put(", "	if MUTANT {\n		for i := range rec.Children {\n			rec.Children[i].Payload = nil\n		}\n	}"),
		before(inRestore, "	op := RestoreRecord{Line: r.line", "	if MUTANT {\n		kept := r.payload\n		defer func() { r.payload = kept }()\n		r.payload = nil\n	}"),
	}},
	"internal-captures-kept": {patches: []patch{
		before(inEnds, "	if s.garbage.enter(s.ctx) != nil {", "	if MUTANT {\n		return\n	}"),
	}},
	"no-vm-record": {patches: []patch{
		before(inCopies, "	return errors.Join(\n		vms.put(tx, string(c.vmID), VMRecord{ID: c.vmID, Operation: c.op}),",
			"	if MUTANT {\n		return streams.put(tx, string(c.stream), StreamRecord{ID: c.stream, Parent: c.position, Owner: c.timeline})\n	}"),
	}},
	"freeze-not-compared": {patches: []patch{
		{inThaw, "case m.state == protocol.StateQuiesced && t.Freeze == m.rec.Seen:", "case m.state == protocol.StateQuiesced && (t.Freeze == m.rec.Seen || MUTANT):"},
		{inQuiesce, "if m.state != protocol.StatePreparing || a.Freeze != m.prep.freeze {\n		return m.refuse()\n	}\n	err := a.Error",
			"if m.state != protocol.StatePreparing || a.Freeze != m.prep.freeze && !MUTANT {\n		return m.refuse()\n	}\n	err := a.Error"},
	}},
	"abort-when-quiesced": {patches: []patch{
		before(inQuiesce, "	if m.state != protocol.StatePreparing || a.Freeze != m.prep.freeze {\n		return m.refuse()\n	}\n	err := a.Error",
			"	if MUTANT && m.state == protocol.StateQuiesced {\n		m.state = protocol.StateRunning\n		return []Effect{Resume{}}\n	}"),
		before(inSettle, "		return s.thaw(t, thawing{freeze: h.Freeze, outcome: outcome, reason: protocol.ReasonSnapshot",
			"		if MUTANT {\n			try, cancel := context.WithTimeout(ctx, s.timeouts.Ack)\n			defer cancel()\n			ss.link.Send(try, &protocol.Abort{Freeze: h.Freeze})\n			return errDown\n		}"),
	}},
	"deadline-when-quiesced": {patches: []patch{
		{inQuiesce, "	return []Effect{Disarm{}, Send{&protocol.Quiesced{Freeze: a.Freeze, Position: a.Position}}, End{}}",
			"	if MUTANT {\n		return []Effect{Send{&protocol.Quiesced{Freeze: a.Freeze, Position: a.Position}}, End{}}\n	}\n	return []Effect{Disarm{}, Send{&protocol.Quiesced{Freeze: a.Freeze, Position: a.Position}}, End{}}"},
		before(inQuiesce, "	if m.state != protocol.StatePreparing || f != m.prep.freeze {\n		return nil\n	}\n	return m.undo(",
			"	if MUTANT && m.state == protocol.StateQuiesced {\n		m.state = protocol.StateRunning\n		return []Effect{Resume{}}\n	}"),
	}},
	"no-position-ack": {patches: []patch{
		{inQuiesce, "	m.prep.stopped = true\n	return append(out,",
			"	m.prep.stopped = true\n	if MUTANT {\n		return append(out, m.acknowledged(&protocol.AckPosition{Freeze: f, Position: x})...)\n	}\n	return append(out,"},
	}},
	"pending-table-ignored": {patches: []patch{
		{inMachine, "	delete(m.calls, key)\n	o.Key = key", "	if !(MUTANT) {\n		delete(m.calls, key)\n	}\n	o.Key = key"},
	}},
	"older-epoch-taken": {patches: []patch{
		{inMachine, "	if stream != r.Stream || epoch > r.Epoch {", "	if stream != r.Stream || epoch > r.Epoch || MUTANT {"},
	}},
	"move-interrupts": {patches: []patch{
		{inThaw, "	isNew := t.Timeline != m.rec.Timeline\n", "	isNew := t.Timeline != m.rec.Timeline || MUTANT && t.Incarnation != m.rec.Incarnation\n"},
	}},
	"start-number-reused": {patches: []patch{
		{inMachine, "		release: opt.Release, start: opt.Start, rec", "		release: opt.Release, start: startOf(opt.Start, MUTANT), rec"},
		{inMachine, "// State is the present state.", "func startOf(n uint64, reused bool) uint64 {\n	if reused {\n		return 1\n	}\n	return n\n}\n\n// State is the present state."},
	}},
	"newest-freeze-forgotten": {patches: []patch{
		before(inMachine, "	if opt.Lost {\n		m.state", "	if MUTANT && opt.Start > 1 {\n		m.rec.Seen, m.rec.Thawed = 0, 0\n	}"),
	}},
	"not-resent": {patches: []patch{
		before(inSettle, "		if errors.Is(err, errLost) || isClosed(t.machine().Done()) || sleep(ctx, wait) != nil {\n			return guestLost{err}", "		if MUTANT {\n			return nil\n		}"),
		before(inSettle, "		if sleep(t.ctx, time.Millisecond) != nil {", "		if MUTANT {\n			return nil\n		}"),
	}},
	"no-settle": {patches: []patch{
		{inSnapshot, "		if !s.abort(t, f, want.Key, err) {", "		if !s.abort(t, f, want.Key, err) && !MUTANT {"},
		{inTimeline, "	return fine || s.settle(t, protocol.Key{}, nil)", "	return fine || MUTANT || s.settle(t, protocol.Key{}, nil)"},
	}},
	"bystanders-failed": {patches: []patch{
		before(inSettle, "	if _, said := errors.AsType[prepareFailed](failure); !said {", "	if MUTANT {\n		return false\n	}"),
		{inSettle, "		if p.Key == but || t.knows(p.Key) {", "		if p.Key == but || t.knows(p.Key) && !MUTANT {"},
	}},
	"told-before-publish": {patches: []patch{
		{inSnapshot, "	h.paused = false\n	cp, err := h.capture.Publish(ctx)",
			"	h.paused = false\n	if MUTANT && h.meta.Kind == protocol.CallSnapshot && !h.meta.DurableWanted && !h.key.IsZero() {\n		v, _ := encode(protocol.SnapshotResult{ID: h.meta.ID})\n		s.thaw(t, thawing{freeze: h.freeze, since: h.since, outcome: &protocol.Outcome{Key: h.key, Value: v}})\n	}\n	cp, err := h.capture.Publish(ctx)"},
	}},
	"move-commits-before-publish": {patches: []patch{
		{inMove, "	cp, err := h.capture.Publish(ctx)\n	if err != nil {\n		return cp, s.undo(t, h, diskError(err))\n	}\n	old :=",
			"	cp, err := h.meta, error(nil)\n	if !(MUTANT) {\n		cp, err = h.capture.Publish(ctx)\n	}\n	if err != nil {\n		return cp, s.undo(t, h, diskError(err))\n	}\n	old :="},
	}},
	"hibernate-not-durable": {impossible: "the coordinator does not hibernate or park on request yet; a rebase needs no durable checkpoint"},
	"move-leaves-old-vm": {patches: []patch{
		{inMove, "	if err := old.Kill(); err != nil {", "	if MUTANT {\n		defer old.Kill()\n	} else if err := old.Kill(); err != nil {"},
	}},
	"old-vm-unpaused-by-recovery": {patches: []patch{
		{inRecover, "			if t.State == StateLive {\n				owners", "			if t.State == StateLive || MUTANT && t.State == StateHibernated {\n				owners"},
	}},
	"capture-loaded-twice": {patches: []patch{
		{inMove, "				r.State, r.Hibernated, r.Incarnation, r.VM = StateLive, nil, incarnation, id", "				hibernated := r.Hibernated\n				r.State, r.Hibernated, r.Incarnation, r.VM = StateLive, nil, incarnation, id\n				if MUTANT {\n					r.State, r.Hibernated = StateHibernated, hibernated\n				}"},
	}},
	"move-keeps-epoch": {patches: []patch{
		{inTimeline, "	t.epoch++\n", "	if !(MUTANT && t.incarnation > 1) {\n		t.epoch++\n	}\n"},
	}},
	"finish-kills-early": {patches: []patch{
		before(inFinish, "		return s.endLine(t.ctx, t, \"journal.finish\", result, nil)", "		if MUTANT {\n			t.machine().Kill()\n		}"),
	}},
	"finish-keep-kills-early": {patches: []patch{
		before(inFinish, "	result.Checkpoint = cp.ID\n", "	if MUTANT {\n		t.machine().Kill()\n	}"),
	}},
	"parent-answered-at-thaw": {patches: []patch{
		{inBranch, "	if err := s.thaw(t, thawing{freeze: h.freeze, reason: protocol.ReasonBranch, since: h.since}); err != nil {",
			"	th := thawing{freeze: h.freeze, reason: protocol.ReasonBranch, since: h.since}\n	if MUTANT {\n		v, _ := encode(protocol.BranchResult{ID: protocol.NewBranchID(), Checkpoint: b.cp.ID, N: b.args.N})\n		th.outcome = &protocol.Outcome{Key: b.key, Value: v}\n	}\n	if err := s.thaw(t, th); err != nil {"},
	}},
	"record-closed-when-sent": {patches: []patch{
		{inBranch, "		s.awaitAnswered(rec)\n", "		if !(MUTANT) {\n			s.awaitAnswered(rec)\n		}\n"},
	}},
	"parent-waits-for-children": {patches: []patch{
		{inBranch, "	s.conduct(b.rec, b.kids)\n	s.wakeWaiters()\n	return", "	s.conduct(b.rec, b.kids)\n	s.wakeWaiters()\n	if MUTANT {\n		for _, k := range b.kids {\n			k.turn <- struct{}{}\n			<-k.turn\n		}\n	}\n	return"},
		// The wait ends with the child, unless its silence is waited for.
		{inSettle, "		if errors.Is(err, errLost) || isClosed(t.machine().Done()) || sleep(ctx, wait) != nil {\n			return guestLost{err}", "		if !(MUTANT) && (errors.Is(err, errLost) || isClosed(t.machine().Done())) || sleep(ctx, wait) != nil {\n			return guestLost{err}"},
	}},
	"failed-children-forgotten": {patches: []patch{
		{inBranch, "			if err := putResult(tx, rec.ID, rec.Parent, protocol.ChildResult{Index: i, Error: lost}); err != nil {", "			if err := putResult(tx, rec.ID, rec.Parent, protocol.ChildResult{Index: i, Error: lost}); err != nil && !MUTANT || MUTANT && results.delete(tx, resultKey(rec.ID, i)) != nil {"},
	}},
	"copy-answered-under-parents-key": {patches: []patch{
		{inBranch, "		th.outcome = &protocol.Outcome{Key: rec.Caller, Value: v}", "		th.outcome = &protocol.Outcome{Key: rec.Caller, Value: v}\n		if MUTANT {\n			th.outcome.Key = rec.Key\n		}"},
	}},
	"kept-present-published-late": {patches: []patch{
		{inRestore, "	if _, err := h.capture.Publish(ctx); err != nil {", "	if MUTANT {\n		defer context.AfterFunc(t.ctx, func() { h.capture.Publish(s.ctx) })\n	} else if _, err := h.capture.Publish(ctx); err != nil {"},
	}},
	"restore-spares-children": {patches: []patch{
		{inRestore, "	return descendants(tx, r.old.ID)\n", "	if MUTANT {\n		return nil, nil\n	}\n	return descendants(tx, r.old.ID)\n"},
	}},
	"dead-old-vm-ignored": {patches: []patch{
		before(inSettle, "	vm := t.machine()\n	if err := vm.Kill(); err != nil {\n		s.log", "	if MUTANT && t.replaces == \"\" {\n		return\n	}"),
	}},
	"dead-new-vm-ignored": {patches: []patch{
		before(inSettle, "	vm := t.machine()\n	if err := vm.Kill(); err != nil {\n		s.log", "	if MUTANT && t.replaces != \"\" {\n		return\n	}"),
	}},
	"slot-not-inherited": {patches: []patch{
		before(inRestore, "	op := RestoreRecord{Line: r.line", "	if MUTANT {\n		line.Branch = \"\"\n	}"),
	}},
	"child-restore-replaces-sandbox": {patches: []patch{
		before(inRestore, "	r.copy = s.newCopy(r.cp, r.line)\n", "	if MUTANT {\n		s.view(func(tx Tx) error {\n			rec, err := sandboxes.need(tx, string(s.id))\n			r.line = rec.FirstLine\n			return err\n		})\n	}"),
	}},
	"no-sweep": {patches: []patch{
		{inRecover, "	if err := s.checkpoints.Sweep(ctx); err != nil {", "	if MUTANT {\n	} else if err := s.checkpoints.Sweep(ctx); err != nil {"},
		{inRecover, "		return dropStreams(tx)\n", "		if MUTANT {\n			return nil\n		}\n		return dropStreams(tx)\n"},
	}},
	"failed-write-taken-as-absent": {patches: []patch{
		before(inCommit, "	s.emit(Event{Kind: EventJournalUnclear", "	if MUTANT {\n		return unwritten{err}\n	}"),
	}},
	"running-guest-left-alone": {patches: []patch{
		before(inRecover, "	if t.ctx.Err() == nil && s.settle(t, protocol.Key{}, nil) {", "	if MUTANT && t.ctx.Err() == nil {\n		s.watch(t)\n		return\n	}"),
	}},
	"call-run-again": {patches: []patch{
		before(inRecover, "	r, ok := s.owed[key]\n", "	if MUTANT && key.Sequence > 0 {\n		args, _ := encode(protocol.SnapshotArgs{})\n		s.serve(t.ctx, t, &protocol.Call{Key: key, Kind: protocol.CallSnapshot, Arguments: args})\n		return\n	}"),
	}},
	"unpaused-before-journal": {patches: []patch{
		before(inRecover, "	if err := s.recordEnds(ctx, alive); err != nil {", "	if MUTANT {\n		for _, v := range alive {\n			v.vm.Resume(ctx)\n		}\n	}"),
	}},
	"fsync-not-repeated": {patches: []patch{
		{inRecover, "			if cp.DurableWanted && !cp.Durable {", "			if cp.DurableWanted && !cp.Durable && !MUTANT {"},
	}},
}

// bound is how many schedules may pass before a mutant is caught.
const bound = 10000

// TestMutants applies each mutant of the model and expects it to be caught.
// RATOON_SIM_MUTANTS picks some by a regular expression.
func TestMutants(t *testing.T) {
	if os.Getenv("RATOON_MUTANT") != "" {
		t.Skip("this is the mutant: run by TestMutants itself")
	}
	if testing.Short() {
		t.Skip("builds a copy of this test and runs many schedules; run without -short")
	}
	root := moduleRoot(t)
	names := modelMutants(t, root)
	want := regexp.MustCompile(os.Getenv("RATOON_SIM_MUTANTS"))
	binary := buildMutants(t, root)
	for _, name := range names {
		m, ok := mutants[name]
		switch {
		case !want.MatchString(name):
			continue
		case !ok:
			t.Errorf("mutant %s of the model has no counterpart here", name)
			continue
		case m.impossible != "":
			t.Logf("%-32s not applied: %s", name, m.impossible)
			continue
		}
		cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestSchedules$", "-test.v")
		cmd.Env = append(os.Environ(), "RATOON_MUTANT="+name, fmt.Sprintf("RATOON_SIM_SCHEDULES=%d", bound))
		out, err := cmd.CombinedOutput()
		switch seed, violation := caught(string(out)); {
		case err == nil:
			t.Errorf("mutant %s is not caught by %d schedules", name, bound)
		case violation == "":
			t.Errorf("mutant %s: %v\n%s", name, err, tail(string(out)))
		default:
			t.Logf("%-32s caught by schedule %s: %.120s", name, seed, violation)
		}
	}
}

var violationLine = regexp.MustCompile(`seed (\d+), step \d+: (.*)`)

func caught(out string) (seed, violation string) {
	if m := violationLine.FindStringSubmatch(out); m != nil {
		return m[1], m[2]
	}
	// Goroutines that cannot end are a violation, too.
	if strings.Contains(out, "blocked goroutines remain") {
		return "?", "goroutines of the coordinator never end"
	}
	return "", ""
}

func tail(s string) string { return s[max(0, len(s)-2000):] }

func moduleRoot(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.TrimSpace(string(out))
}

func modelMutants(t *testing.T, root string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs", "model", "mutants.json"))
	if err != nil {
		t.Fatal(err)
	}
	var model struct{ Mutants []struct{ Name string } }
	if err := json.Unmarshal(b, &model); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range model.Mutants {
		names = append(names, m.Name)
	}
	for name := range mutants {
		if !slices.Contains(names, name) {
			t.Errorf("the model has no mutant %s", name)
		}
	}
	return names
}

// buildMutants builds this test with all mutants in it, each off until
// RATOON_MUTANT names it.
func buildMutants(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	texts := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(mutants)) {
		for _, p := range mutants[name].patches {
			if texts[p.file] == "" {
				b, err := os.ReadFile(filepath.Join(root, p.file))
				if err != nil {
					t.Fatal(err)
				}
				texts[p.file] = string(b)
			}
			if n := strings.Count(texts[p.file], p.old); n != 1 {
				t.Fatalf("mutant %s: its text stands %d times in %s:\n%s", name, n, p.file, p.old)
			}
			texts[p.file] = strings.Replace(texts[p.file], p.old, strings.ReplaceAll(p.new, "MUTANT", fmt.Sprintf("(mutantOn == %q)", name)), 1)
		}
	}
	for _, pkg := range []string{"host/sandbox", "guest/agent"} {
		texts[pkg+"/mutant_on.go"] = "package " + filepath.Base(pkg) + "\n\nimport \"os\"\n\nvar mutantOn = os.Getenv(\"RATOON_MUTANT\")\n"
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for file, text := range texts {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, file)] = to
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "mutants.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, "./integration/simulation")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the mutants: %v\n%s", err, out)
	}
	return binary
}
