package integration_test

import (
	"fmt"
	"strings"
	"testing"
)

// printing prints more than the host has taken when it ends its line.
const printing = `
import os, ratoon, sys
def much(name):
    print("".join(f"{name} {i:06}\n" for i in range(20000)) + "the last", flush=True)
    os.write(2, b"the error\n")
b = ratoon.branch(3)
if b.index is not None:
    much("child")
    if b.index == 2:
        os._exit(3)
    ratoon.finish(keep=b.index == 1)
print([r.error and r.error.code for r in b.results()], flush=True)
much("first")
ratoon.finish()
`

// TestLastOutput: what was printed before a finish, and before a child's exit,
// is there, also when the reader is slow.
func TestLastOutput(t *testing.T) {
	t.Parallel()
	r := run(t, options{command: "/bin/sh", args: []string{"-c", `"$0" run --follow -- python3 -c "$1" | { sleep 10; cat; }`, command(t), printing}})
	printed := map[string]bool{}
	for l := range strings.Lines(r.stdout) {
		printed[strings.TrimSuffix(l, "\n")] = true
	}
	for _, prefix := range []string{"", "0.0| ", "0.1| ", "0.2| "} {
		name := "child"
		if prefix == "" {
			name = "first"
		}
		missing := 0
		for i := range 20000 {
			if !printed[fmt.Sprintf("%s%s %06d", prefix, name, i)] {
				missing++
			}
		}
		last, oops := strings.Count("\n"+r.stdout, "\n"+prefix+"the last\n"), strings.Count("\n"+r.stderr, "\n"+prefix+"the error\n")
		if missing != 0 || last != 1 || oops != 1 {
			t.Errorf("%q: %d lines are missing, the last is there %d times, the error %d times", prefix, missing, last, oops)
		}
	}
	if want := "[None, None, 'child_exited']\n"; !strings.Contains(r.stdout, want) {
		t.Errorf("no %q in the output\n%s", want, r.stderr)
	}
}
