package checkpoint_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

func drawID(prefix string) *rapid.Generator[string] {
	return rapid.Map(rapid.StringOfN(rapid.RuneFrom([]rune("abcdefghijklmnopqrstuvwxyz234567")), 16, 16, -1),
		func(s string) string { return prefix + "-" + s })
}

func drawRuns(t *rapid.T) checkpoint.Runs {
	runs := checkpoint.Runs{}
	var at int64
	for range rapid.IntRange(0, 20).Draw(t, "runs") {
		at += rapid.Int64Range(0, 1<<40).Draw(t, "gap")
		r := memory.Run{Offset: at, Length: rapid.Int64Range(1, 1<<40).Draw(t, "length"), Zero: rapid.Bool().Draw(t, "zero")}
		if !r.Zero {
			r.CRC = rapid.Uint32().Draw(t, "crc")
		}
		at += r.Length
		runs = append(runs, r)
	}
	return rapid.Permutation(runs).Draw(t, "order")
}

func TestManifestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 40, -1)
		m := checkpoint.Manifest{
			ID:      protocol.CheckpointID(drawID("cp").Draw(t, "id")),
			Class:   rapid.SampledFrom([]checkpoint.Class{checkpoint.ClassNamed, checkpoint.ClassAuto, checkpoint.ClassInternal}).Draw(t, "class"),
			Label:   text.Draw(t, "label"),
			Created: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC(),
			Boot:    text.Draw(t, "boot"),
			Sandbox: protocol.SandboxID(drawID("sb").Draw(t, "sandbox")), Timeline: protocol.TimelineID(drawID("tl").Draw(t, "timeline")),
			Line: protocol.LineID(drawID("ln").Draw(t, "line")), Node: rapid.StringMatching(`([0-9]{1,3}(\.[0-9]{1,3}){0,4})?`).Draw(t, "node"),
			Freeze: protocol.Freeze(rapid.Uint64().Draw(t, "freeze")), Durable: rapid.Bool().Draw(t, "durable"),
			DurableWanted: rapid.Bool().Draw(t, "wanted"),
			VMM:           checkpoint.VMM{Name: text.Draw(t, "vmm"), Version: text.Draw(t, "version"), CPUModel: text.Draw(t, "cpu"), Accel: "kvm"},
			Machine:       checkpoint.Machine{MemoryBytes: rapid.Int64Range(0, math.MaxInt64).Draw(t, "memory"), CPUs: rapid.IntRange(0, 512).Draw(t, "cpus")},
			KernelDigest:  text.Draw(t, "kernel"), ImageDigest: text.Draw(t, "image"), Release: text.Draw(t, "release"),
			ProtocolVersion: rapid.IntRange(0, 100).Draw(t, "protocol"), Base: protocol.BaseID(drawID("ba").Draw(t, "base")),
			Digest: text.Draw(t, "digest"),
		}
		if rapid.Bool().Draw(t, "options") {
			m.Parent = protocol.CheckpointID(drawID("cp").Draw(t, "parent"))
			m.Key = protocol.Key{Timeline: m.Timeline, Start: rapid.Uint64().Draw(t, "start"), Sequence: rapid.Uint64().Draw(t, "seq")}
			m.Position = protocol.Position{Stream: protocol.StreamID(drawID("st").Draw(t, "stream")), Sequence: rapid.Uint64().Draw(t, "pos")}
			m.Execs = []protocol.ExecOffsets{{ID: protocol.ExecID(drawID("ex").Draw(t, "exec")), Stdout: rapid.Uint64().Draw(t, "out")}}
		}
		m.Files.State = checkpoint.File{Size: rapid.Int64Range(0, math.MaxInt64).Draw(t, "state"), CRC32C: rapid.Uint32().Draw(t, "crc"), SHA256: text.Draw(t, "sha")}
		m.Files.Pages.Runs = drawRuns(t)
		m.Files.Pages.Size = m.Files.Pages.Runs.Data()
		data, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(data, []byte("\n")) != 2 {
			t.Fatalf("not two lines: %q", data)
		}
		got, err := checkpoint.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		m.Format = checkpoint.FormatFlat
		if d := cmp.Diff(m, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
	})
}

// reseal puts a right header over another body.
func reseal(format int, body []byte) []byte {
	return append(fmt.Appendf(nil, `{"ratoon":"checkpoint","format":%d,"size":%d,"crc32c":%d}`+"\n", format, len(body), sum(body)), body...)
}

func encoded(t testing.TB) (line, body []byte) {
	m := manifest(protocol.NewBaseID())
	m.ID = protocol.NewCheckpointID()
	m.Files.Pages.Runs = checkpoint.Runs{}
	data, err := m.Encode()
	check(t, err)
	line, body, _ = bytes.Cut(data, []byte("\n"))
	return line, body
}

func TestManifestUnknownFields(t *testing.T) {
	t.Parallel()
	_, body := encoded(t)
	more := append([]byte(`{"later":{"a":[1,2]},`), body[1:]...)
	if _, err := checkpoint.Decode(reseal(checkpoint.FormatFlat, more)); err != nil {
		t.Errorf("unknown field: %v", err)
	}
}

func TestManifestNewerFormat(t *testing.T) {
	t.Parallel()
	_, body := encoded(t)
	_, err := checkpoint.Decode(reseal(checkpoint.FormatFrames+1, body))
	code(t, err, protocol.CodeCheckpointRefused)
	if !strings.Contains(err.Error(), "format 3") {
		t.Errorf("does not name the format: %v", err)
	}
}

// TestManifestHostile holds sealed manifests with content that no release
// writes: ids that are paths, runs that overlap or overflow.
func TestManifestHostile(t *testing.T) {
	t.Parallel()
	_, body := encoded(t)
	for name, change := range map[string]func(map[string]any){
		"id":      func(m map[string]any) { m["id"] = "../../etc" },
		"base":    func(m map[string]any) { m["base"] = "../../etc" },
		"parent":  func(m map[string]any) { m["parent"] = "../x" },
		"sandbox": func(m map[string]any) { m["sandbox"] = "/" },
		"stream":  func(m map[string]any) { m["position"] = map[string]any{"stream": "../x", "sequence": 1} },
		"exec":    func(m map[string]any) { m["execs"] = []any{map[string]any{"id": "../x"}} },
		"short": func(m map[string]any) {
			m["files"].(map[string]any)["pages"] = map[string]any{"size": 0, "runs": []any{[]int{1}}}
		},
		"negative": func(m map[string]any) {
			m["files"].(map[string]any)["pages"] = map[string]any{"size": 0, "runs": []any{[]int{-1, 4096}}}
		},
		"overflow": func(m map[string]any) {
			m["files"].(map[string]any)["pages"] = map[string]any{"size": 0, "runs": []any{[]int64{math.MaxInt64 - 1, 4096}}}
		},
		"crc": func(m map[string]any) {
			m["files"].(map[string]any)["pages"] = map[string]any{"size": 1, "runs": []any{[]int64{0, 1, 1 << 32}}}
		},
		"type": func(m map[string]any) { m["freeze"] = "x" },
	} {
		var m map[string]any
		check(t, json.Unmarshal(body, &m))
		change(m)
		evil, err := json.Marshal(m)
		check(t, err)
		if _, err := checkpoint.Decode(reseal(checkpoint.FormatFlat, append(evil, '\n'))); protocol.CodeOf(err) != protocol.CodeCheckpointLost {
			t.Errorf("%s: %v, want checkpoint_lost", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	line, body := encoded(f)
	f.Add(append(append(line, '\n'), body...))
	f.Add([]byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := checkpoint.Decode(data)
		if err != nil {
			if c := protocol.CodeOf(err); c != protocol.CodeCheckpointLost && c != protocol.CodeCheckpointRefused {
				t.Fatalf("code %s: %v", c, err)
			}
			return
		}
		if _, err := m.Encode(); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}

func TestCompatible(t *testing.T) {
	t.Parallel()
	m := manifest(protocol.NewBaseID())
	have := checkpoint.Platform{VMM: m.VMM, Machine: m.Machine, KernelDigest: m.KernelDigest, ImageDigest: m.ImageDigest, ProtocolVersion: m.ProtocolVersion}
	check(t, m.Compatible(have))
	m.Release, m.InitrdDigest = "other", "other"
	check(t, m.Compatible(have))
	for what, change := range map[string]func(*checkpoint.Platform){
		"VMM":         func(p *checkpoint.Platform) { p.VMM.Name = "x" },
		"VMM version": func(p *checkpoint.Platform) { p.VMM.Version = "x" },
		"CPU model":   func(p *checkpoint.Platform) { p.VMM.CPUModel = "x" },
		"accelerator": func(p *checkpoint.Platform) { p.VMM.Accel = "x" },
		"kernel":      func(p *checkpoint.Platform) { p.KernelDigest = "x" },
		"image":       func(p *checkpoint.Platform) { p.ImageDigest = "x" },
		"protocol":    func(p *checkpoint.Platform) { p.ProtocolVersion++ },
		"memory size": func(p *checkpoint.Platform) { p.Machine.MemoryBytes++ },
		"CPUs":        func(p *checkpoint.Platform) { p.Machine.CPUs++ },
	} {
		p := have
		change(&p)
		e := code(t, m.Compatible(p), protocol.CodeCheckpointRefused)
		if d := cmp.Diff([]string{what}, e.Details["differs"]); d != "" || !strings.Contains(e.Message, what) {
			t.Errorf("%s: %q (-want +got):\n%s", what, e.Message, d)
		}
	}
	all := code(t, m.Compatible(checkpoint.Platform{}), protocol.CodeCheckpointRefused)
	if got := len(all.Details["differs"].([]string)); got != 9 {
		t.Errorf("%d differences named, want 9: %v", got, all)
	}
}
