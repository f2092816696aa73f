package protocol_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// source is what the package's own text says, comments included: the tables of
// docs/PROTOCOL.md are made from it.
type source struct {
	structs map[string]structDoc
	consts  map[string][]constDoc // by type, "" without one
}

type structDoc struct {
	doc    string
	fields []fieldDoc
}

type fieldDoc struct {
	name     string // on the wire
	typ      string
	optional bool
	doc      string
}

type constDoc struct {
	name, value, doc string
}

var readSources = sync.OnceValues(func() (*source, error) {
	s := &source{structs: make(map[string]structDoc), consts: make(map[string][]constDoc)}
	for _, name := range []string{"calls.go", "errors.go", "ids.go", "limits.go", "local.go", "messages.go", "streams.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				s.add(g)
			}
		}
	}
	return s, nil
})

func sources(t *testing.T) *source {
	t.Helper()
	s, err := readSources()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *source) add(g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if st, ok := spec.Type.(*ast.StructType); ok {
				doc := spec.Doc
				if doc == nil && !g.Lparen.IsValid() {
					doc = g.Doc
				}
				s.structs[spec.Name.Name] = structDoc{comment(spec.Name.Name, doc), fieldDocs(st)}
			}
		case *ast.ValueSpec:
			if g.Tok == token.CONST && len(spec.Values) == 1 {
				typ := ""
				if id, ok := spec.Type.(*ast.Ident); ok {
					typ = id.Name
				}
				name := spec.Names[0].Name
				s.consts[typ] = append(s.consts[typ], constDoc{name, literal(spec.Values[0]), comment(name, spec.Doc, spec.Comment)})
			}
		}
	}
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok {
		if s, err := strconv.Unquote(l.Value); err == nil {
			return s
		}
		return l.Value
	}
	return ""
}

func fieldDocs(st *ast.StructType) (out []fieldDoc) {
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		raw, _ := strconv.Unquote(f.Tag.Value)
		tag, opts, _ := strings.Cut(reflect.StructTag(raw).Get("msgpack"), ",")
		out = append(out, fieldDoc{tag, wireType(f.Type), opts == "omitempty", comment(f.Names[0].Name, f.Doc, f.Comment)})
	}
	return out
}

// wireType names a Go type by what it is in msgpack.
func wireType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return wireType(e.X) + " or nil"
	case *ast.ArrayType:
		if id, ok := e.Elt.(*ast.Ident); ok && id.Name == "byte" {
			return "bin"
		}
		return "array of " + wireType(e.Elt)
	case *ast.MapType:
		return "map of " + wireType(e.Value)
	case *ast.Ident:
		switch name := e.Name; {
		case strings.HasPrefix(name, "int"), strings.HasPrefix(name, "uint"), name == "Freeze":
			return "int"
		case name == "bool":
			return "bool"
		case name == "any":
			return "any"
		case name == "string", strings.HasSuffix(name, "ID"), slices.Contains([]string{"Code", "CallKind", "State", "ResumeReason"}, name):
			return "str"
		default:
			return name
		}
	}
	return "?"
}

// comment joins comments to one line; the name at the start of a Go comment
// says nothing in a table.
func comment(name string, groups ...*ast.CommentGroup) string {
	var parts []string
	for _, g := range groups {
		if text := strings.Join(strings.Fields(g.Text()), " "); text != "" {
			parts = append(parts, text)
		}
	}
	text := strings.Join(parts, " ")
	for _, lead := range []string{name + " is ", name + " says that ", name + ": ", name + " "} {
		if rest, ok := strings.CutPrefix(text, lead); ok {
			text = rest
			break
		}
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
