package checkpoint

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/ratoon-project/ratoon/host/memory"
)

// Runs is the run table of a pages file. In a manifest each run is an array:
// [offset, length, crc32c] with data, [offset, length] of zero bytes.
type Runs []memory.Run

// Data is how many bytes the runs have in the pages file.
func (r Runs) Data() int64 {
	var n int64
	for _, run := range r {
		if !run.Zero {
			n += run.Length
		}
	}
	return n
}

// End is the offset after the last byte of the base that a run covers.
func (r Runs) End() int64 {
	var end int64
	for _, run := range r {
		end = max(end, run.Offset+run.Length)
	}
	return end
}

// MarshalJSON writes the table in its compact form.
func (r Runs) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, 2+24*len(r))
	out = append(out, '[')
	for i, run := range r {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '[')
		out = strconv.AppendInt(out, run.Offset, 10)
		out = append(out, ',')
		out = strconv.AppendInt(out, run.Length, 10)
		if !run.Zero {
			out = append(out, ',')
			out = strconv.AppendUint(out, uint64(run.CRC), 10)
		}
		out = append(out, ']')
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads the compact form. It is written by hand since a run table
// may be long.
func (r *Runs) UnmarshalJSON(data []byte) error {
	p := runParser{data: data}
	out := Runs{}
	if err := p.list(func() error {
		var row [3]int64
		n := 0
		if err := p.list(func() error {
			if n == len(row) {
				return p.bad("a run has more than 3 numbers")
			}
			v, err := p.number()
			row[n] = v
			n++
			return err
		}); err != nil {
			return err
		}
		switch {
		case n == 2:
			out = append(out, memory.Run{Offset: row[0], Length: row[1], Zero: true})
		case n == 3 && row[2] >= 0 && row[2] <= math.MaxUint32:
			out = append(out, memory.Run{Offset: row[0], Length: row[1], CRC: uint32(row[2])})
		default:
			return p.bad("not a run")
		}
		return nil
	}); err != nil {
		return err
	}
	*r = out
	return nil
}

// runParser reads lists of lists of whole numbers, of JSON that is valid.
type runParser struct {
	data []byte
	at   int
}

func (p *runParser) bad(what string) error { return fmt.Errorf("run table at byte %d: %s", p.at, what) }

// next is the next character that is no blank, 0 at the end.
func (p *runParser) next() byte {
	for ; p.at < len(p.data); p.at++ {
		if c := p.data[p.at]; c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}

// list reads [ELEMENT,...].
func (p *runParser) list(element func() error) error {
	if p.next() != '[' {
		return p.bad("want a list")
	}
	p.at++
	if p.next() == ']' {
		p.at++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		c := p.next()
		p.at++
		switch c {
		case ',':
		case ']':
			return nil
		default:
			return p.bad("the list does not end")
		}
	}
}

func (p *runParser) number() (int64, error) {
	p.next()
	from := p.at
	for p.at < len(p.data) && (p.data[p.at] == '-' || p.data[p.at] >= '0' && p.data[p.at] <= '9') {
		p.at++
	}
	n, err := strconv.ParseInt(string(p.data[from:p.at]), 10, 64)
	if err != nil {
		return 0, p.bad("want a whole number")
	}
	return n, nil
}

// validate refuses runs that no base can have.
func (r Runs) validate() error {
	for i, run := range r {
		if run.Offset < 0 || run.Length <= 0 || run.Offset > math.MaxInt64-run.Length {
			return fmt.Errorf("run %d: offset %d, length %d", i, run.Offset, run.Length)
		}
	}
	sorted := slices.SortedFunc(slices.Values(r), func(a, b memory.Run) int {
		return cmp.Compare(a.Offset, b.Offset)
	})
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].Offset+sorted[i-1].Length > sorted[i].Offset {
			return fmt.Errorf("runs overlap at offset %d", sorted[i].Offset)
		}
	}
	return nil
}
