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
// characters, those that change the direction of text, and other invisible
// ones appear as Go escapes; bytes that are no text as U+FFFD.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
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

// units are powers of 1024, by what may follow a number.
var units = map[string]int{"": 0, "B": 0, "K": 10, "KB": 10, "KIB": 10, "M": 20, "MB": 20, "MIB": 20, "G": 30, "GB": 30, "GIB": 30, "T": 40, "TB": 40, "TIB": 40}

// parseSize reads 256M, 1GiB, 1024 (bytes).
func parseSize(s string) (int64, error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	shift, ok := units[strings.ToUpper(s[digits:])]
	n, err := strconv.ParseInt(s[:digits], 10, 64)
	if !ok || err != nil || n == 0 || n > 1<<(62-shift) {
		return 0, usage("%q is not a size such as 256M or 1G", s)
	}
	return n << shift, nil
}
