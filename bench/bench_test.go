package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var s sample
	for i := range 100 {
		s = append(s, time.Duration(99-i))
	}
	if got := []time.Duration{s.at(0), s.median(), s.at(0.99), s.at(1)}; !cmp.Equal(got, []time.Duration{0, 50, 99, 99}) {
		t.Errorf("got %v", got)
	}
	if got := (sample)(nil).median(); got != 0 {
		t.Errorf("median of nothing is %v", got)
	}
}

func TestSlope(t *testing.T) {
	t.Parallel()
	if got := slope([]float64{1, 2, 4}, []float64{5, 7, 11}); got != 2 {
		t.Errorf("got %v, want 2", got)
	}
}

// A stop lasts from prepare to thawed; what is between stops is nobody's.
func TestPauses(t *testing.T) {
	t.Parallel()
	at := time.Now()
	var marks []mark
	for i, name := range []string{"thaw", "call snapshot", "prepare", "quiesce", "journal", "load", "journal", "thaw", "journal", "prepare", "quiesce"} {
		marks = append(marks, mark{name: name, at: at.Add(time.Duration(i*i) * time.Millisecond)})
	}
	got := pauses(marks)
	if len(got) != 1 {
		t.Fatalf("saw %d stops, want 1", len(got))
	}
	want := map[string]time.Duration{"quiesce": 5 * time.Millisecond, "journal": 18 * time.Millisecond, "load": 9 * time.Millisecond, "thaw": 13 * time.Millisecond}
	if d := cmp.Diff(want, got[0].took); d != "" {
		t.Error(d)
	}
	if got[0].total != 45*time.Millisecond || !got[0].rebased() {
		t.Errorf("total %v, rebased %v", got[0].total, got[0].rebased())
	}
}

func TestProcFiles(t *testing.T) {
	t.Parallel()
	if n, err := meminfo("MemTotal"); err != nil || n < 1<<20 {
		t.Errorf("MemTotal is %d, %v", n, err)
	}
	if n, err := pss(os.Getpid()); err != nil || n < 1<<20 {
		t.Errorf("the test's own PSS is %d, %v", n, err)
	}
	if _, err := privateRAM(os.Getpid()); err == nil {
		t.Error("found a base in a process that maps none")
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	r := newReport("bench -quick")
	r.figure(figure{name: "boot", measured: "1 s", ratio: "2x", met: met(false)})
	r.table("Steps", "", "step", "took").add("one", "1 ms")
	out := r.markdown()
	for _, want := range []string{"| boot | 1 s |  | 2x |  | no |\n", "## Steps\n\n| step | took |\n| --- | --- |\n| one | 1 ms |\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
