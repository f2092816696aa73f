package admin_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/admin"
)

// node is a part of the document.
type node = map[string]any

// document reads openapi.yaml, with its references replaced by what they refer
// to.
func document(t *testing.T) node {
	t.Helper()
	b, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var root node
	if err := yaml.Unmarshal(b, &root); err != nil {
		t.Fatal(err)
	}
	var resolve func(v any) any
	resolve = func(v any) any {
		switch v := v.(type) {
		case node:
			if ref, ok := v["$ref"].(string); ok {
				var at any = root
				for _, name := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
					at = at.(node)[name]
				}
				if at == nil {
					t.Fatalf("openapi.yaml refers to %s, which it has not", ref)
				}
				return resolve(at)
			}
			out := node{}
			for name, e := range v {
				out[name] = resolve(e)
			}
			return out
		case []any:
			out := []any{}
			for _, e := range v {
				out = append(out, resolve(e))
			}
			return out
		}
		return v
	}
	return resolve(root).(node)
}

// parameter of an operation.
type parameter struct {
	name     string
	required bool
	schema   node
}

// operation is one method of one path.
type operation struct {
	method, path string
	variables    []parameter // in the path
	query        []parameter
	key          bool   // takes an idempotency key
	kind         string // of the body; empty: it takes none
	required     bool   // the body
	body         node   // schema of a JSON body
}

func (o operation) String() string { return o.method + " " + o.path }

// operations are all of the document.
func operations(t *testing.T) (all []operation) {
	t.Helper()
	for where, methods := range document(t)["paths"].(node) {
		shared, _ := methods.(node)["parameters"].([]any)
		for method, v := range methods.(node) {
			if method == "parameters" {
				continue
			}
			o := operation{method: strings.ToUpper(method), path: where}
			own, _ := v.(node)["parameters"].([]any)
			for _, p := range slices.Concat(shared, own) {
				o.add(t, p.(node))
			}
			if body, ok := v.(node)["requestBody"].(node); ok {
				o.required, _ = body["required"].(bool)
				for kind, media := range body["content"].(node) {
					o.kind = kind
					if kind == "application/json" {
						o.body = media.(node)["schema"].(node)
					}
				}
			}
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return all
}

func (o *operation) add(t *testing.T, p node) {
	t.Helper()
	required, _ := p["required"].(bool)
	out := parameter{p["name"].(string), required, p["schema"].(node)}
	switch p["in"] {
	case "path":
		o.variables = append(o.variables, out)
	case "query":
		o.query = append(o.query, out)
	case "header":
		if out.name != admin.HeaderKey {
			t.Fatalf("%s has a header %s, which no test knows", o, out.name)
		}
		o.key = true
	}
}

// properties of a schema of an object.
func properties(schema node) node {
	out, _ := schema["properties"].(node)
	return out
}

func required(schema node, name string) bool {
	all, _ := schema["required"].([]any)
	return slices.Contains(all, any(name))
}

// samples are strings that fit the patterns of the document.
var samples = []string{"", "a", "/x", "cp-aaaaaaaaaaaaaaaa", "ex-aaaaaaaaaaaaaaaa"}

// sample is a value that fits a schema.
func sample(t *testing.T, schema node) any {
	t.Helper()
	switch schema["type"] {
	case "object":
		out := node{}
		for name, s := range properties(schema) {
			if required(schema, name) {
				out[name] = sample(t, s.(node))
			}
		}
		return out
	case "array":
		return []any{sample(t, schema["items"].(node))}
	case "integer", "number":
		if least, ok := schema["minimum"]; ok {
			return least
		}
		return 0
	case "boolean":
		return false
	}
	if names, ok := schema["enum"].([]any); ok {
		return names[0]
	}
	for _, s := range samples {
		if fits(t, schema, s) {
			return s
		}
	}
	t.Fatalf("no sample fits %v: add one", schema)
	return nil
}

// target is the address of an operation on things that do not exist, with the
// parameters that are required.
func (o operation) target(t *testing.T) string {
	t.Helper()
	out, sep := o.path, "?"
	for _, p := range o.variables {
		out = strings.ReplaceAll(out, "{"+p.name+"}", sample(t, p.schema).(string))
	}
	for _, p := range o.query {
		if p.required {
			out += sep + p.name + "=" + sample(t, p.schema).(string)
			sep = "&"
		}
	}
	return out
}

// TestDocument holds the routes and openapi.yaml to each other.
func TestDocument(t *testing.T) {
	var documented []string
	for _, o := range operations(t) {
		var query []string
		for _, p := range o.query {
			query = append(query, p.name)
		}
		text := o.String() + "?" + strings.Join(query, "&")
		if o.key {
			text += " with a key"
		}
		documented = append(documented, text)
	}
	served := admin.Routes()
	slices.Sort(documented)
	slices.Sort(served)
	if d := cmp.Diff(documented, served); d != "" {
		t.Fatalf("openapi.yaml (-) and the routes (+) differ:\n%s", d)
	}
}

// TestSignalNames: the document lists the signals that this kernel has.
func TestSignalNames(t *testing.T) {
	var got, want []string
	for _, name := range document(t)["components"].(node)["schemas"].(node)["SignalName"].(node)["enum"].([]any) {
		got = append(got, name.(string))
	}
	for n := range unix.Signal(65) {
		if name := unix.SignalName(n); name != "" {
			want = append(want, name)
		}
	}
	if d := cmp.Diff(got, want); d != "" {
		t.Fatal(d)
	}
}
