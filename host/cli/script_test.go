package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/cli"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/state"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"ratoon": func() { os.Exit(cli.Main(context.Background())) },
		"kept":   func() { must(kept(os.Getenv(state.Env))) },
	})
}

// status runs a command and compares its exit status: status N COMMAND...
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND...")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = strconv.Itoa(exit.ExitCode())
	}
	if got != args[0] {
		ts.Fatalf("exit status %s, want %s", got, args[0])
	}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status},
		Setup: func(e *testscript.Env) error {
			e.Setenv(state.Env, e.WorkDir+"/state")
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("COMMANDS", filepath.SplitList(e.Getenv("PATH"))[0]) // where ratoon is, and nothing else
			return nil
		},
	})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// kept makes what an ended run with --keep leaves: a tree and one checkpoint.
func kept(dir string) error {
	d, err := state.Open(dir)
	if err != nil {
		return err
	}
	run, err := d.NewRun()
	if err != nil {
		return err
	}
	defer run.Close()
	store, err := checkpoint.Open(run.Path, checkpoint.Options{})
	if err != nil {
		return err
	}
	m := checkpoint.Manifest{ID: "cp-aaaaaaaaaaaaaaaa", Class: checkpoint.ClassNamed, Label: "evil\x1b[2J", Created: time.Now(),
		Sandbox: "sb-aaaaaaaaaaaaaaaa", Timeline: "tl-aaaaaaaaaaaaaaaa", Line: "ln-aaaaaaaaaaaaaaaa", Node: "0", Freeze: 2, Base: "ba-aaaaaaaaaaaaaaaa",
		Machine: checkpoint.Machine{MemoryBytes: 1 << 20, CPUs: 1}}
	b, err := store.BeginBase(m.Base)
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(b.RAMPath(), make([]byte, 1<<20), 0o600),
		b.Publish(context.Background(), checkpoint.BaseManifest{ID: m.Base})); err != nil {
		return err
	}
	p, err := store.Begin(m.ID)
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(p.PagesPath(), nil, 0o600), os.WriteFile(p.StatePath(), []byte("state"), 0o600),
		p.Publish(context.Background(), m)); err != nil {
		return err
	}
	return run.Journal.Sandbox(m.Sandbox).Update("journal.test", func(tx sandbox.Tx) error {
		put := func(table string, key any, record any) error {
			b, err := json.Marshal(record)
			return errors.Join(err, tx.Put(table, fmt.Sprint(key), b))
		}
		return errors.Join(
			put("sandbox", m.Sandbox, sandbox.SandboxRecord{ID: m.Sandbox, State: sandbox.StateEnded}),
			put("line", m.Line, sandbox.LineRecord{ID: m.Line, Node: "0", Timeline: m.Timeline}),
			put("timeline", m.Timeline, sandbox.TimelineRecord{ID: m.Timeline, Line: m.Line, State: sandbox.StateEnded}))
	})
}
