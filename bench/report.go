package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// figure is one line of the summary.
type figure struct {
	name, measured, baseline, ratio, target string
	met                                     string // yes, no or empty
}

// table is one detailed result.
type table struct {
	title, note string
	columns     []string
	rows        [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// report collects what is measured.
type report struct {
	command   string
	began     time.Time
	took      time.Duration
	machine   [][2]string
	figures   []figure
	tables    []*table
	failures  []string
	roundTrip time.Duration // of a bare echo, part of the floor
}

func newReport(command string) *report { return &report{command: command, began: time.Now()} }

func (r *report) figure(f figure) { r.figures = append(r.figures, f) }

func (r *report) table(title, note string, columns ...string) *table {
	t := &table{title: title, note: note, columns: columns}
	r.tables = append(r.tables, t)
	return t
}

func (r *report) failed(name string, err error) {
	r.failures = append(r.failures, fmt.Sprintf("`%s` was not measured: %v", name, err))
}

func met(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

func millis(d time.Duration) string {
	switch m := ms(d); {
	case m < 1:
		return fmt.Sprintf("%.2f ms", m)
	case m < 100:
		return fmt.Sprintf("%.1f ms", m)
	case m < 10000:
		return fmt.Sprintf("%.0f ms", m)
	default:
		return fmt.Sprintf("%.1f s", m/1000)
	}
}

func times(x float64) string { return fmt.Sprintf("%.2fx", x) }

func mebibytes(n float64) string { return fmt.Sprintf("%.1f MiB", n/(1<<20)) }

// describe says what the figures were measured on.
func (r *report) describe(ctx context.Context, l *lab) error {
	info, err := l.driver.Info(ctx)
	if err != nil {
		return err
	}
	load, _ := os.ReadFile("/proc/loadavg")
	version := "unknown"
	if out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output(); err == nil {
		version = string(bytes.TrimSpace(out))
	} else if b, ok := debug.ReadBuildInfo(); ok {
		version = b.Main.Version
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	total, err := meminfo("MemTotal")
	if err != nil {
		return err
	}
	r.machine = [][2]string{
		{"command", "`" + r.command + "`"},
		{"date", r.began.UTC().Format("2006-01-02 15:04 MST")},
		{"processor", fmt.Sprintf("%s, %d seen", procField("/proc/cpuinfo", "model name"), runtime.NumCPU())},
		{"memory", fmt.Sprintf("%.0f GiB", float64(total)/(1<<30))},
		{"host kernel", strings.TrimSpace(string(kernel))},
		{"load before", strings.Join(strings.Fields(string(load))[:3], " ")},
		{"Ratoon", version},
		{"Go", runtime.Version()},
		{"VMM", fmt.Sprintf("%s %s, %s, CPU %s", info.Name, info.Version, info.Accel, info.CPUModel)},
		{"guest kernel", l.kernel},
	}
	return nil
}

// markdown is the whole document.
func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString("# Benchmarks\n\nWritten by `make bench`. Ratios are between things measured in the same run; a ratio over 1 means that Ratoon takes\n" +
		"less, unless the figure says otherwise. Times under emulation (TCG) on another machine will differ; ratios less so.\n\n")
	for _, m := range r.machine {
		fmt.Fprintf(&b, "- %s: %s\n", m[0], m[1])
	}
	fmt.Fprintf(&b, "- took: %.0f s\n\n## Summary\n\n", r.took.Seconds())
	summary := table{columns: []string{"figure", "measured", "baseline", "ratio", "target", "met"}}
	for _, f := range r.figures {
		summary.add(f.name, f.measured, f.baseline, f.ratio, f.target, f.met)
	}
	summary.write(&b)
	for _, f := range r.failures {
		fmt.Fprintf(&b, "\n%s\n", f)
	}
	for _, t := range r.tables {
		fmt.Fprintf(&b, "\n## %s\n\n", t.title)
		if t.note != "" {
			b.WriteString(t.note + "\n\n")
		}
		t.write(&b)
	}
	return b.String()
}

func (t *table) write(b *strings.Builder) {
	row := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	row(t.columns)
	row(strings.Split(strings.Repeat("---,", len(t.columns)-1)+"---", ","))
	for _, r := range t.rows {
		row(r)
	}
}
