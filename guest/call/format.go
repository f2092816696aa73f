package call

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/internal/jsonnum"
)

// Formats of results.
const (
	formatJSON = "json"
	formatEnv  = "env"
)

// variable is one line of the env format; the name gets the prefix RATOON_.
type variable struct{ name, value string }

// print writes v as JSON, or the variables.
func (s *session) print(v any, vars ...variable) error {
	if s.opt.format == formatEnv {
		for _, x := range vars {
			if _, err := fmt.Fprintf(s.Out, "RATOON_%s=%s\n", x.name, quote(x.value)); err != nil {
				return err
			}
		}
		return nil
	}
	enc := json.NewEncoder(s.Out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// quote makes one word of a POSIX shell, whatever is in s. A shell cannot hold
// NUL bytes; they are left out.
func quote(s string) string {
	s = strings.ReplaceAll(s, "\x00", "")
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// fromJSON parses an argument into the types that msgpack encodes.
func fromJSON(s string) (any, error) {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, usage("%.64q is not JSON: %w", s, err)
	}
	if d.More() {
		return nil, usage("%.64q is more than one JSON value", s)
	}
	return jsonnum.Whole(v), nil
}

// toJSON renders a payload; what JSON cannot say becomes a string.
func toJSON(v client.Value) (json.RawMessage, error) {
	a, err := v.Any()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(printable(a)); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// printable gives maps the string keys that JSON wants.
func printable(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[fmt.Sprint(k)] = printable(x)
		}
		return m
	case map[string]any:
		for k := range v {
			v[k] = printable(v[k])
		}
	case []any:
		for i := range v {
			v[i] = printable(v[i])
		}
	}
	return v
}

// index is "" for none.
func index(i *int) string {
	if i == nil {
		return ""
	}
	return strconv.Itoa(*i)
}

func flagText(b bool) string {
	if b {
		return "1"
	}
	return ""
}
