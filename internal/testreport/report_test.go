package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"github.com/ratoon-project/ratoon/a"}
{"Action":"output","Package":"github.com/ratoon-project/ratoon/a","Test":"TestGood","Output":"quiet when good\n"}
{"Action":"pass","Package":"github.com/ratoon-project/ratoon/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"github.com/ratoon-project/ratoon/a","Test":"TestLacking","Output":"    a_test.go:7: no KVM: run on bare metal\n"}
{"Action":"output","Package":"github.com/ratoon-project/ratoon/a","Test":"TestLacking","Output":"--- SKIP: TestLacking (0.00s)\n"}
{"Action":"skip","Package":"github.com/ratoon-project/ratoon/a","Test":"TestLacking"}
{"Action":"pass","Package":"github.com/ratoon-project/ratoon/a","Elapsed":2}
`

const failing = `{"Action":"output","Package":"github.com/ratoon-project/ratoon/b","Test":"TestBad","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"github.com/ratoon-project/ratoon/b","Test":"TestBad"}
{"Action":"fail","Package":"github.com/ratoon-project/ratoon/b"}
`

const panicking = `{"Action":"output","Package":"github.com/ratoon-project/ratoon/c","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"github.com/ratoon-project/ratoon/c"}
`

const building = `{"ImportPath":"github.com/ratoon-project/ratoon/d","Action":"build-output","Output":"d.go:1: syntax error\n"}
{"ImportPath":"github.com/ratoon-project/ratoon/d","Action":"build-fail"}
`

func TestReport(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "skips")
	if err := os.WriteFile(list, []byte("# where all is installed\na TestLacking needs KVM\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "none")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, in string
		args     []string
		code     int
		want     []string
	}{
		{"good", events, []string{"-skips", list, "-strict"}, 0, []string{"1 passed, 0 failed, 1 skipped", "skipped: a TestLacking: no KVM: run on bare metal", "ok   2s a"}},
		{"unexpected", events, []string{"-skips", empty, "-strict"}, 1, []string{"skipped: NOT EXPECTED a TestLacking"}},
		{"unexpected but lenient", events, []string{"-skips", empty}, 0, []string{"NOT EXPECTED"}},
		{"failure", events + failing, []string{"-skips", list}, 1, []string{"got 1, want 2", "FAIL     b", "1 passed, 1 failed", "failed: b TestBad"}},
		{"panic", panicking, nil, 1, []string{"panic: test timed out", "failed: c"}},
		{"build", building, nil, 1, []string{"syntax error", "failed: build of d"}},
		{"plain line", "go: no such package\n" + failing, nil, 1, []string{"go: no such package"}},
		{"broken input", `{"Action":`, nil, 2, nil},
		{"broken list", events, []string{"-skips", os.Args[0] + ".absent"}, 2, nil},
		{"unknown flag", events, []string{"-nonsense"}, 2, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var out, errs strings.Builder
			if code := run(test.args, strings.NewReader(test.in), &out, &errs); code != test.code {
				t.Errorf("status %d, want %d\n%s%s", code, test.code, out.String(), errs.String())
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, out.String())
				}
			}
			if strings.Contains(out.String(), "quiet when good") {
				t.Error("the output of a passing test is shown")
			}
		})
	}
}

func TestParseSkips(t *testing.T) {
	t.Parallel()
	if _, err := parseSkips("host/vmm TestKVM\n"); err == nil {
		t.Error("a line without a reason was accepted")
	}
}
