package integration_test

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"
)

// consuming reads its input without a buffer, in lines of eight bytes, and
// goes back to the same checkpoint again and again. Each line must be there
// once.
const consuming = `
import os, sys, ratoon

step, total = int(sys.argv[1]), int(sys.argv[2])
name = os.uname().nodename

def take(first, n):
    for i in range(first, first + n):
        line = b""
        while len(line) < 8:
            got = os.read(0, 8 - len(line))
            if not got:
                sys.exit(f"the input ends before line {i}")
            line += got
        if int(line) != i:
            sys.exit(f"line {int(line)}, want {i}")
    return first + n

at = take(0, 3)
cp = ratoon.snapshot()
turn, at = cp.payload or (0, at)
if turn < 3:
    at = take(at, step)
    print("turn", turn, flush=True)
    ratoon.restore(cp.id, payload=[turn + 1, at], keep_present=turn == 1)
if turn == 3:
    b = ratoon.branch(1)
    if b.index is not None:
        end = ratoon.finish(os.read(0, 8).decode(), keep=True)
        print("adopted", os.read(0, 8), os.uname().nodename == name, flush=True)
        ratoon.restore(cp.id, payload=[4, end.payload])
    print("child", [r.result for r in b.results()], flush=True)
    b.adopt(0, payload=take(at, step))
print("rest", take(at, total - at), os.read(0, 8), flush=True)
`

// TestInputOnce: what a timeline has consumed is not given to the next one, and
// what it has not is.
func TestInputOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ step, total int }{
		"in the pipe":      {2, 20},
		"more than a pipe": {10_000, 45_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var in bytes.Buffer
			for i := range c.total {
				fmt.Fprintf(&in, "%07d\n", i)
			}
			out := succeed(t, options{stdin: in.String()}, "python3", "-c", consuming, strconv.Itoa(c.step), strconv.Itoa(c.total))
			want := fmt.Sprintf("turn 0\nturn 1\nturn 2\nchild ['']\nadopted b'' True\nrest %d b''\n", c.total)
			if out != want {
				t.Errorf("output\n%swant\n%s", out, want)
			}
		})
	}
}
