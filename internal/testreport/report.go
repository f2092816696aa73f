package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// module is cut off package names.
const module = "github.com/ratoon-project/ratoon/"

// event is one line of `go test -json` (see `go doc test2json`), or of the
// build's output.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

type skip struct{ pkg, test, reason string }

func (s skip) matches(o skip) bool { return s.pkg == o.pkg && s.test == o.test }

type report struct {
	w      io.Writer
	output map[skip]*strings.Builder // of each running test, reason unset
	skips  []skip
	passed int
	failed []string
	broken map[string]bool // packages with a failure of their own or a test's
}

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[skip]*strings.Builder{}, broken: map[string]bool{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// The go command itself may write a plain line when it cannot start.
			if strings.HasPrefix(lines.Text(), "{") {
				return fmt.Errorf("line %d: %w", n, err)
			}
			fmt.Fprintln(r.w, lines.Text())
			continue
		}
		r.take(e)
	}
	return lines.Err()
}

func (r *report) take(e event) {
	key := skip{pkg: strings.TrimPrefix(e.Package, module), test: e.Test}
	switch e.Action {
	case "build-output":
		io.WriteString(r.w, e.Output)
	case "build-fail":
		r.failed = append(r.failed, "build of "+strings.TrimPrefix(e.ImportPath, module))
	case "output":
		b := r.output[key]
		if b == nil {
			b = &strings.Builder{}
			r.output[key] = b
		}
		b.WriteString(e.Output)
	case "pass", "fail", "skip":
		r.end(e, key)
		delete(r.output, key)
	}
}

func (r *report) end(e event, key skip) {
	text := ""
	if b := r.output[key]; b != nil {
		text = b.String()
	}
	if e.Test == "" {
		r.endPackage(e, key.pkg, text)
		return
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		key.reason = reason(text)
		r.skips = append(r.skips, key)
	case "fail":
		r.broken[key.pkg] = true
		r.failed = append(r.failed, key.pkg+" "+e.Test)
		io.WriteString(r.w, text)
	}
}

func (r *report) endPackage(e event, pkg, text string) {
	switch e.Action {
	case "skip":
		fmt.Fprintf(r.w, "  --     %s (no tests)\n", pkg)
	case "fail":
		fmt.Fprintf(r.w, "FAIL     %s\n", pkg)
		if !r.broken[pkg] {
			// A panic, a timeout or a failing build, which no test is blamed for.
			r.failed = append(r.failed, pkg)
			io.WriteString(r.w, text)
		}
	default:
		fmt.Fprintf(r.w, "  ok %3.0fs %s\n", e.Elapsed, pkg)
	}
}

// reason is what a test said when it skipped: its last line before the verdict.
func reason(output string) string {
	last := "no reason given"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		last = line
		if where, text, ok := strings.Cut(line, ": "); ok && strings.Contains(where, ".go:") {
			last = text
		}
	}
	return last
}

func (r *report) finish(expected []skip, strict bool) int {
	fmt.Fprintf(r.w, "\n%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), len(r.skips))
	unexpected := 0
	for _, s := range r.skips {
		mark := ""
		if !slices.ContainsFunc(expected, s.matches) {
			mark = "NOT EXPECTED "
			unexpected++
		}
		fmt.Fprintf(r.w, "skipped: %s%s %s: %s\n", mark, s.pkg, s.test, s.reason)
	}
	for _, f := range r.failed {
		fmt.Fprintf(r.w, "failed: %s\n", f)
	}
	if len(r.failed) > 0 || strict && unexpected > 0 {
		return 1
	}
	return 0
}

// parseSkips reads lines of package, test and reason; # starts a comment.
func parseSkips(text string) ([]skip, error) {
	var out []skip
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case len(fields) < 3:
			return nil, fmt.Errorf("%q: want package, test and reason", strings.TrimSpace(line))
		default:
			out = append(out, skip{fields[0], fields[1], strings.Join(fields[2:], " ")})
		}
	}
	return out, nil
}
