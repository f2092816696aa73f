package checkpoint

import (
	"cmp"
	"encoding/json"
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

// UnmarshalJSON reads the compact form.
func (r *Runs) UnmarshalJSON(data []byte) error {
	var rows [][]int64
	if err := json.Unmarshal(data, &rows); err != nil {
		return err
	}
	out := make(Runs, len(rows))
	for i, row := range rows {
		switch {
		case len(row) == 2:
			out[i] = memory.Run{Offset: row[0], Length: row[1], Zero: true}
		case len(row) == 3 && row[2] >= 0 && row[2] <= math.MaxUint32:
			out[i] = memory.Run{Offset: row[0], Length: row[1], CRC: uint32(row[2])}
		default:
			return fmt.Errorf("run %d: %v is not a run", i, row)
		}
	}
	*r = out
	return nil
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
