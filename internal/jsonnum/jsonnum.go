// Package jsonnum keeps whole numbers whole through JSON.
package jsonnum

import "encoding/json"

// Whole replaces each json.Number in v, as a decoder with UseNumber leaves
// them, by int64 where it fits, else by float64. It changes v's arrays and maps.
func Whole(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = Whole(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = Whole(v[name])
		}
	}
	return v
}
