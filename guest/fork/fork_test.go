package fork_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/guest/fork"
	"github.com/ratoon-project/ratoon/protocol"
)

// script notes what happens and fails where it is told to.
type script struct {
	log  []string
	fail string
	x    protocol.Position
}

var errFail = errors.New("told to")

func (s *script) do(what string) error {
	s.log = append(s.log, what)
	if what == s.fail {
		return errFail
	}
	return nil
}

func (s *script) Freeze(context.Context) error { return s.do("freeze") }
func (s *script) Thaw() error                  { return s.do("thaw") }

type part struct {
	*script
	name string
}

func (p part) Name() string                  { return p.name }
func (p part) Prepare(context.Context) error { return p.do("prepare " + p.name) }
func (p part) Resume()                       { p.do("resume " + p.name) }
func (p part) Drain(context.Context) (protocol.Position, error) {
	return p.x, p.do("drain " + p.name)
}

func TestQuiescer(t *testing.T) {
	t.Parallel()
	all := []string{"prepare a", "prepare b", "freeze", "drain a", "drain b"}
	undo := []string{"thaw", "resume b", "resume a"}
	for fail, want := range map[string][]string{
		"":          all,
		"prepare a": {"prepare a", "resume a"},
		"prepare b": {"prepare a", "prepare b", "resume b", "resume a"},
		"freeze":    {"prepare a", "prepare b", "freeze", "resume b", "resume a"},
		"drain a":   append([]string{"prepare a", "prepare b", "freeze", "drain a"}, undo...),
		"drain b":   append(append([]string{}, all...), undo...),
	} {
		s := &script{fail: fail, x: protocol.Position{Stream: "st-x", Sequence: 3}}
		q := fork.NewQuiescer(s, part{s, "a"}, part{s, "b"})
		x, err := q.Stop(t.Context())
		if (err != nil) != (fail != "") || err != nil && !errors.Is(err, errFail) {
			t.Errorf("fail %q: %v", fail, err)
		}
		if err == nil && x != s.x {
			t.Errorf("position %v, want %v", x, s.x)
		}
		if diff := cmp.Diff(want, s.log); diff != "" {
			t.Errorf("fail %q (-want +got):\n%s", fail, diff)
		}
	}
}

func TestGoThatFailsCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := &script{}
	q := fork.NewQuiescer(s, part{s, "a"})
	if _, err := q.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.log, s.fail = nil, "thaw"
	if err := q.Go(); !errors.Is(err, errFail) {
		t.Fatalf("go: %v", err)
	}
	s.fail = ""
	if err := q.Go(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"thaw", "thaw", "resume a"}, s.log); diff != "" {
		t.Error(diff)
	}
}

func TestStopEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := &script{}
	q := fork.NewQuiescer(s, part{s, "a"})
	cancel()
	if _, err := q.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("stop: %v", err)
	}
	if got := strings.Join(s.log, ", "); !strings.HasSuffix(got, "thaw, resume a") {
		t.Errorf("not undone: %s", got)
	}
}

// fakeCgroup is a directory with a cgroup's files; nothing freezes in it.
func fakeCgroup(t *testing.T, events string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"cgroup.events": events, "cgroup.freeze": "0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFreezer(t *testing.T) {
	t.Parallel()
	read := func(dir string) string {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	dir := fakeCgroup(t, "populated 1\nfrozen 1\n")
	f := fork.NewFreezer(dir)
	if err := f.Freeze(t.Context()); err != nil || read(dir) != "1" {
		t.Fatalf("freeze: %v, cgroup.freeze %q", err, read(dir))
	}
	if frozen, err := f.Frozen(); !frozen || err != nil {
		t.Errorf("frozen: %v, %v", frozen, err)
	}
	if err := f.Thaw(); err != nil || read(dir) != "0" {
		t.Errorf("thaw: %v, cgroup.freeze %q", err, read(dir))
	}

	dir = fakeCgroup(t, "populated 1\nfrozen 0\n")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := fork.NewFreezer(dir).Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) || read(dir) != "0" {
		t.Errorf("users that do not freeze: %v, cgroup.freeze %q", err, read(dir))
	}
	if err := fork.NewFreezer(t.TempDir()).Freeze(t.Context()); err == nil {
		t.Error("a directory that is no cgroup was frozen")
	}
}

func TestFix(t *testing.T) {
	t.Parallel()
	steps := []string{"clock", "reseed", "boot id", "names"}
	for _, c := range []struct {
		name           string
		newTL, newLine bool
		entropy, fail  int // fail: index of the step, -1 none
		want           []string
	}{
		{"same timeline", false, true, 32, -1, steps[:2]},
		{"restore", true, false, 32, -1, steps[:3]},
		{"branch", true, true, 32, -1, steps},
		{"little entropy", true, true, 31, -1, nil},
		{"clock fails", true, true, 32, 0, steps[:1]},
		{"reseed fails", true, true, 32, 1, steps[:2]},
		{"boot id fails", true, true, 32, 2, steps[:3]},
		{"names fail", true, true, 32, 3, steps},
	} {
		s := &script{}
		if c.fail >= 0 {
			s.fail = steps[c.fail]
		}
		var set time.Time
		f := &fork.Fixer{
			SetClock:       func(now time.Time) error { set = now; return s.do("clock") },
			Reseed:         func([]byte) error { return s.do("reseed") },
			SetBootID:      func() error { return s.do("boot id") },
			SetNames:       func(protocol.Identity) error { return s.do("names") },
			MonotonicClock: func() int64 { return 8e9 },
		}
		err := f.Fix(&protocol.Thaw{Time: 1000e9, Clock: 5e9, Entropy: make([]byte, c.entropy), Identity: protocol.Identity{NewLine: c.newLine}}, c.newTL)
		if diff := cmp.Diff(c.want, s.log); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if wantErr := c.fail >= 0 || c.entropy < 32; (err != nil) != wantErr {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.want != nil && !set.Equal(time.Unix(1003, 0)) {
			t.Errorf("%s: the clock was set to %v, want the time of thaw and the 3 s since", c.name, set)
		}
	}
}

func TestClockOfARunningMachine(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sets := 0
	f := &fork.Fixer{Now: func() time.Time { return now }, SetClock: func(time.Time) error { sets++; return nil },
		MonotonicClock: func() int64 { return 8e9 }}
	for offset, want := range map[time.Duration]int{0: 0, 40 * time.Millisecond: 0, -time.Second: 1, time.Hour: 1} {
		sets = 0
		if err := f.Clock(now.Add(offset).UnixNano()-3e9, 5e9); err != nil || sets != want {
			t.Errorf("offset %v: %d steps, %v; want %d", offset, sets, err, want)
		}
	}
}

func TestIdentityFiles(t *testing.T) {
	t.Parallel()
	files := fork.Files{Dir: t.TempDir()}
	read := func() string {
		b, err := os.ReadFile(filepath.Join(files.Dir, "boot_id"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if err := files.SetBootID(); err != nil {
		t.Fatal(err)
	}
	first := read()
	if err := files.SetBootID(); err != nil {
		t.Fatal(err)
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n$`)
	if second := read(); second == first || !uuid.MatchString(second) {
		t.Errorf("boot ids %q, %q", first, second)
	}
	for _, id := range []protocol.Identity{{Hostname: "a b"}, {Hostname: strings.Repeat("x", 65)}, {MachineID: "../x"}, {MachineID: "0"}} {
		if err := files.SetNames(id); err == nil {
			t.Errorf("%+v was accepted", id)
		}
	}
	if err := (fork.Files{}).SetBootID(); err == nil {
		t.Error("no directory, no error")
	}
}

func TestReseed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("adding entropy needs root: run the tests as root")
	}
	if err := fork.Reseed([]byte(strings.Repeat("test", 16))); err != nil {
		t.Error(err)
	}
}
