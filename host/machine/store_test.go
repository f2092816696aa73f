package machine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// A sandbox sees and changes its own checkpoints only, may start from one of
// another sandbox if it is told so, and has the templates with all.
func TestStoresAreApart(t *testing.T) {
	t.Parallel()
	m, dir := engine(t, &driver{})
	writeTemplate(t, dir, "ba-tttttttttttttttt")
	ctx, other := t.Context(), protocol.NewSandboxID()
	own, foreign, child := m.Checkpoints(owner), m.Checkpoints(other), m.Checkpoints(other, from)
	want := protocol.Errorf(protocol.CodeUnknownCheckpoint, "")

	if cp, err := own.Get(ctx, from); protocol.CodeOf(err) != protocol.CodeCheckpointRefused {
		t.Errorf("the owner gets %+v, %v; want one that is refused for its VMM", cp, err)
	}
	if _, err := child.Get(ctx, from); protocol.CodeOf(err) != protocol.CodeCheckpointRefused {
		t.Errorf("who may start from it: %v", err)
	}
	if err := child.Check(ctx, from); err != nil {
		t.Errorf("who may start from it checks it: %v", err)
	}
	for name, err := range map[string]error{
		"get":              get(foreign, from),
		"check":            foreign.Check(ctx, from),
		"durable":          foreign.Durable(ctx, from),
		"class":            foreign.SetClass(ctx, from, sandbox.ClassAuto),
		"remove":           foreign.Remove(ctx, from),
		"class by child":   child.SetClass(ctx, from, sandbox.ClassAuto),
		"remove by child":  child.Remove(ctx, from),
		"of nobody":        get(own, "cp-cccccccccccccccc"),
		"remove of nobody": own.Remove(ctx, "cp-cccccccccccccccc"),
	} {
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %s", name, err, protocol.CodeUnknownCheckpoint)
		}
	}
	for name, s := range map[string]*machine.Store{"owner": own, "foreign": foreign, "child": child} {
		list, err := s.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(list); got != map[string]int{"owner": 1}[name] {
			t.Errorf("%s lists %d checkpoints", name, got)
		}
		if cp, err := s.Get(ctx, "cp-tttttttttttttttt"); err != nil || cp.Label != "template" {
			t.Errorf("%s: template: %+v, %v", name, cp, err)
		}
	}
	if all, err := m.List(ctx); err != nil || len(all) != 1 || all[0].Sandbox != owner {
		t.Errorf("all: %+v, %v", all, err)
	}
	if err := errors.Join(own.SetClass(ctx, from, sandbox.ClassAuto), own.Remove(ctx, from)); err != nil {
		t.Errorf("by the owner: %v", err)
	}
}

// What a sandbox has used counts bases that serve it only; the host's limit is
// looked at before a capture.
func TestDiskUsed(t *testing.T) {
	t.Parallel()
	m, _ := engine(t, &driver{})
	own, err := m.Checkpoints(owner).DiskUsed(t.Context())
	if err != nil || own < 1<<20 {
		t.Errorf("owner: %d bytes, %v; want its base of 1 MiB and more", own, err)
	}
	if n, err := m.Checkpoints(protocol.NewSandboxID()).DiskUsed(t.Context()); n != 0 || err != nil {
		t.Errorf("a new sandbox: %d bytes, %v", n, err)
	}
	if err := m.Checkpoints(owner).Room(t.Context()); err != nil {
		t.Error(err)
	}
	full, err := machine.New(t.Context(), machine.Options{Driver: &driver{}, Dir: t.TempDir(), Cache: t.TempDir(), DiskLimit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := full.Kind(machine.Kind{}).Checkpoints(owner).Room(t.Context()); protocol.CodeOf(err) != protocol.CodeDiskFull {
		t.Errorf("over the host's limit: %v", err)
	}
}

func get(s *machine.Store, id protocol.CheckpointID) error {
	_, err := s.Get(context.Background(), id)
	return err
}

func writeTemplate(t *testing.T, dir string, id protocol.BaseID) {
	t.Helper()
	store, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := store.BeginBase(id)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(b.RAMPath(), make([]byte, 1<<20), 0o600), os.WriteFile(b.StatePath(), []byte("state"), 0o600),
		b.Publish(t.Context(), checkpoint.BaseManifest{ID: id, From: checkpoint.Origin{Template: "key"}}))
	if err != nil {
		t.Fatal(err)
	}
}

// The sweep of one sandbox leaves alone what others are writing.
func TestSweepOfOneSandbox(t *testing.T) {
	t.Parallel()
	m, dir := engine(t, &driver{})
	left := filepath.Join(dir, "tmp", "cp-left")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what an earlier process left is still there: %v", err)
	}
	pending := machine.BeginCapture(t, m)
	busy, err := filepath.Glob(filepath.Join(dir, "tmp", "*"))
	if err != nil || len(busy) != 1 {
		t.Fatalf("%v, %v", busy, err)
	}
	if err := errors.Join(m.Checkpoints(owner).Sweep(t.Context()), m.Checkpoints(protocol.NewSandboxID()).Sweep(t.Context())); err != nil {
		t.Fatal(err)
	}
	now, err := filepath.Glob(filepath.Join(dir, "tmp", "*"))
	if diff := cmp.Diff(busy, now); diff != "" || err != nil {
		t.Errorf("%v, being written (-want +got):\n%s", err, diff)
	}
	pending()
}

// Kinds share bases: one memory file of a base, whatever machines map it.
func TestKindsShareBases(t *testing.T) {
	t.Parallel()
	d := &driver{}
	m, _ := engine(t, d)
	other := m.Kind(machine.Kind{MemoryBytes: 1 << 20, CPUs: 2, Boot: machine.Boot{Cmdline: "x"}})
	if m.Key() == other.Key() {
		t.Error("two kinds have one template")
	}
	for _, k := range []*machine.Machines{m, other} {
		v, err := k.Load(t.Context(), sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: from})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Kill()
	}
	if diff := cmp.Diff(map[string]int{string(base): 2}, m.Users()); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	if got := d.specs(); len(got) != 2 || got[0].CPUs != 1 || got[1].CPUs != 2 || got[1].Cmdline != "x" {
		t.Errorf("specs: %+v", got)
	}
}
