package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// escape makes text that came from a guest safe for a terminal: control
// characters, also those of other alphabets, appear as Go escapes.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// line is escape for text that must stay on one line.
func line(s string) string {
	return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(escape(s))
}

// print writes v as JSON, or its table.
func (g *global) print(v any, table func(io.Writer)) error {
	switch g.output {
	case "json":
		e := json.NewEncoder(g.out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case "table", "":
		w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
		table(w)
		return w.Flush()
	default:
		return usage("-o %s: want table or json", line(g.output))
	}
}

// size prints bytes for people.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, exp := float64(n)/unit, 0
	for v >= unit && exp < 4 {
		v /= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[exp])
}

// parseSize reads 256M, 1G, 1024 (bytes).
func parseSize(s string) (int64, error) {
	t := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "B"), "I")
	shift := 0
	if i := strings.IndexAny("KMGT", lastByte(t)); i >= 0 && t != "" {
		shift, t = 10*(i+1), t[:len(t)-1]
	}
	n, err := strconv.ParseInt(t, 10, 64)
	if err != nil || n <= 0 || n > 1<<(62-shift) {
		return 0, usage("%q is not a size such as 256M or 1G", line(s))
	}
	return n << shift, nil
}

func lastByte(s string) string {
	if s == "" {
		return "?"
	}
	return s[len(s)-1:]
}
