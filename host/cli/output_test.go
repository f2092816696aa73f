package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/cli"
	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/image"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain ünïcode 漢字 ✓":       "plain ünïcode 漢字 ✓",
		"two\nlines\tand a tab":    "two\nlines\tand a tab",
		"\x1b[2J\x1b]0;title\x07":  `\x1b[2J\x1b]0;title\a`,
		"over\rwritten\b\x7f":      `over\rwritten\b\x7f`,
		"\u009b31m\u0085":          `\u009b31m\u0085`, // C1: CSI in one byte
		"\xff\x9b31m":              "\ufffd\ufffd31m",
		"abc\u202etxt.exe\u202c":   `abc\u202etxt.exe\u202c`,
		"\u2066\u2067\u2068\u2069": `\u2066\u2067\u2068\u2069`,
		"\u200b\u200e\u200f\ufeff": `\u200b\u200e\u200f\ufeff`,
		"\u2028\u2029":             `\u2028\u2029`,
		"\U000e0041":               `\U000e0041`,
	} {
		if got := cli.Escape(in); got != want {
			t.Errorf("escape(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := cli.Line("a\nb\tc\x1b"), `a\nb\tc\x1b`; got != want {
		t.Errorf("line: got %q, want %q", got, want)
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("\x1b[2J\u202e\u009b\xff\n")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range cli.Line(s) {
			if !unicode.IsPrint(r) {
				t.Errorf("line(%q) holds %q", s, r)
			}
		}
		for _, r := range cli.Escape(s) {
			if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
				t.Errorf("escape(%q) holds %q", s, r)
			}
		}
	})
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"1": 1, "1024": 1024, "1k": 1 << 10, "256M": 256 << 20, "256m": 256 << 20, "256MB": 256 << 20, "256MiB": 256 << 20, "2G": 2 << 30, "1T": 1 << 40,
		"100B": 100, "4194304T": 1 << 62,
		"": 0, "0": 0, "-1": 0, "M": 0, "B": 0, "i": 0, "1.5G": 0, "256X": 0, "256 M": 0, "1MM": 0, "1KMi": 0, "0x10": 0, "1e3": 0, "+1": 0, "1_000": 0,
		"4194305T": 0, "9223372036854775807": 0, "9223372036854775808": 0, "99999999999999999999G": 0, "1i": 0, "1Bi": 0,
	} {
		got, err := cli.ParseSize(in)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("parseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
		if err != nil && cli.StatusOf(err) != 2 {
			t.Errorf("parseSize(%q): exit status %d, want 2", in, cli.StatusOf(err))
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"256M", "1GiB", "9999999999999999999T", "-1K", "KK", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := cli.ParseSize(s)
		if (n > 0) != (err == nil) || n > 1<<62 {
			t.Errorf("parseSize(%q) = %d, %v", s, n, err)
		}
	})
}

func TestSize(t *testing.T) {
	t.Parallel()
	for in, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 3 << 29: "1.5 GiB", 1 << 50: "1.0 PiB", 1 << 62: "4096.0 PiB"} {
		if got := cli.Size(in); got != want {
			t.Errorf("size(%d) = %q, want %q", in, got, want)
		}
	}
}

func TestCompareNodes(t *testing.T) {
	t.Parallel()
	want := []string{"0", "0.0", "0.0.0", "0.2", "0.2.1", "0.10", "0.10.3", "0.100"}
	got := slices.Clone(want)
	slices.Sort(got)
	slices.SortFunc(got, cli.CompareNodes)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestDrawTree(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cli.DrawTree(&out, protocol.TreeResult{
		Sandbox: "sb-aaaaaaaaaaaaaaaa", State: "running",
		Timelines: []protocol.TreeTimeline{
			{ID: "tl-c", Node: "0.10", State: "live", Label: "evil\x1b[2J\u202e"},
			{ID: "tl-b", Node: "0.2", State: "stopped", Reason: "the machine\nended"},
			{ID: "tl-d", Node: "0.2.0", State: "live"},
			{ID: "tl-a", Node: "0", State: "live"},
		},
		Checkpoints: []protocol.TreeCheckpoint{
			{ID: "cp-aaaaaaaaaaaaaaaa", Timeline: "tl-a", Class: "named", Bytes: 3 << 20, Label: "clean"},
			{ID: "cp-bbbbbbbbbbbbbbbb", Timeline: "tl-d", Class: "auto", Bytes: 10},
			{ID: "cp-cccccccccccccccc", Timeline: "tl-elsewhere", Class: "auto"},
		},
	})
	want := `sb-aaaaaaaaaaaaaaaa  running
  0  live
    cp-aaaaaaaaaaaaaaaa  named  3.0 MiB  "clean"
    0.2  stopped  (the machine\nended)
      0.2.0  live
        cp-bbbbbbbbbbbbbbbb  auto  10 B
    0.10  live  "evil\x1b[2J\u202e"
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err    error
		status int
		remedy bool
	}{
		{cli.Usage("no such flag"), 2, false},
		{fmt.Errorf("read: %w", protocol.Errorf(protocol.CodeInvalidArgument, "no id")), 2, true},
		{protocol.Errorf(protocol.CodeUnknownCheckpoint, "none"), 2, true},
		{protocol.Errorf(protocol.CodeNotFound, "none"), 2, true},
		{protocol.Errorf(protocol.CodeDiskFull, "full"), 125, true},
		{protocol.Errorf(protocol.CodeBusy, "busy"), 125, true},
		{errors.Join(errors.New("one"), protocol.Errorf(protocol.CodeChildLost, "two")), 125, true},
		{fmt.Errorf("make run directory: %w", &fs.PathError{Op: "mkdir", Path: "x", Err: syscall.ENOSPC}), 125, true},
		{fmt.Errorf("make run directory: %w", &fs.PathError{Op: "mkdir", Path: "x", Err: syscall.EACCES}), 125, true},
		{&image.Error{Op: "build", Err: image.ErrNoTool, Remedy: "install it"}, 125, false},
		{errors.New("anything"), 125, false},
	} {
		if got := cli.StatusOf(tc.err); got != tc.status {
			t.Errorf("%v: exit status %d, want %d", tc.err, got, tc.status)
		}
		if got := cli.RemedyOf(tc.err); (got != "") != tc.remedy {
			t.Errorf("%v: remedy %q, want one: %v", tc.err, got, tc.remedy)
		}
	}
}

// A running host answers on its socket, and nobody else's programs may ask.
func TestSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // longer than a socket's path
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ratoon.sock")
	if _, ok, err := cli.Ask(t.Context(), path); ok || err != nil {
		t.Errorf("without a socket: %v, %v", ok, err)
	}
	l, err := cli.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info, err)
	}
	l.Close()
	if _, ok, err := cli.Ask(t.Context(), path); ok || err != nil {
		t.Errorf("a socket that nobody listens on: %v, %v", ok, err)
	}
}

func TestChildLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out bytes.Buffer
	c := cli.NewChildren(dir, true, &out, &out)
	s := c.Sink("0.1", "stdout")
	for _, b := range []string{"hel", "lo\nwor", "ld\x1b[2J\n", "rest"} {
		if n, err := s.Write([]byte(b)); n != len(b) || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
	}
	s.Write(bytes.Repeat([]byte("x"), cli.LogLimit))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "0.1| hello\n0.1| world\\x1b[2J\n0.1| restxxx"; !strings.HasPrefix(got, want) {
		t.Errorf("terminal: got %.80q, want %q", got, want)
	}
	b, err := os.ReadFile(filepath.Join(dir, "0.1.stdout"))
	if err != nil || len(b) != cli.LogLimit || !bytes.HasPrefix(b, []byte("hello\nworld\x1b[2J\nrest")) {
		t.Errorf("log: %d bytes, %v, %.30q", len(b), err, b)
	}
}

// The first signal goes to the program, the second ends the run, as the first
// does when there is no program yet.
func TestInterrupts(t *testing.T) {
	t.Parallel()
	ctx, signals, _, stop := cli.Passing(t.Context())
	defer stop()
	signals <- syscall.SIGINT
	<-ctx.Done()
	if err := context.Cause(ctx); protocol.CodeOf(err) != protocol.CodeCancelled || !strings.Contains(err.Error(), "SIGINT") {
		t.Errorf("without a program: %v", err)
	}
	ctx, signals, to, stop := cli.Passing(t.Context())
	defer stop()
	to(program.New(program.Options{}))
	signals <- syscall.SIGINT
	signals <- syscall.SIGTERM
	<-ctx.Done()
	if err := context.Cause(ctx); protocol.CodeOf(err) != protocol.CodeCancelled || !strings.Contains(err.Error(), "SIGTERM") {
		t.Errorf("with a program: %v", err)
	}
}
