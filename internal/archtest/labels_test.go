package archtest_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dir is the parsed source of one folder.
type dir struct {
	files, tests []*ast.File
	consts       map[string]string          // of strings
	funcs        map[string][]*ast.FuncDecl // by name, whatever the receiver
}

// parse reads the Go files of the module below these folders.
func parse(t *testing.T, fset *token.FileSet, roots ...string) map[string]*dir {
	t.Helper()
	all := map[string]*dir{}
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if e.IsDir() && e.Name() == "testdata" {
				return fs.SkipDir
			}
			if filepath.Ext(path) != ".go" {
				return nil
			}
			f, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				return err
			}
			d := all[filepath.Dir(path)]
			if d == nil {
				d = &dir{consts: map[string]string{}, funcs: map[string][]*ast.FuncDecl{}}
				all[filepath.Dir(path)] = d
			}
			if strings.HasSuffix(path, "_test.go") {
				d.tests = append(d.tests, f)
				return nil
			}
			d.files = append(d.files, f)
			d.declare(f)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func (d *dir) declare(f *ast.File) {
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			d.funcs[decl.Name.Name] = append(d.funcs[decl.Name.Name], decl)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && decl.Tok == token.CONST && len(v.Values) == len(v.Names) {
					for i, name := range v.Names {
						if s, ok := literal(v.Values[i]); ok {
							d.consts[name.Name] = s
						}
					}
				}
			}
		}
	}
}

// literal is the value of a string literal.
func literal(e ast.Expr) (string, bool) {
	b, ok := e.(*ast.BasicLit)
	if !ok || b.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(b.Value)
	return s, err == nil
}

// called is the last part of the name of what a call calls.
func called(c *ast.CallExpr) string { return lastName(c.Fun) }

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func isPoint(c *ast.CallExpr) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Point" && isIdent(s.X, "fault")
}

func isIdent(e ast.Expr, name string) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == name
}

// calls visits the calls in the functions of a folder.
func (d *dir) calls(visit func(in *ast.FuncDecl, c *ast.CallExpr)) {
	for _, name := range slices.Sorted(maps.Keys(d.funcs)) {
		for _, in := range d.funcs[name] {
			ast.Inspect(in, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					visit(in, c)
				}
				return true
			})
		}
	}
}

// source finds the labels that the arguments of fault.Point can be, by syntax:
// literals, constants, sums of them, and parameters, whose values are looked
// for in the calls of every function of that name.
type source struct {
	t    *testing.T
	fset *token.FileSet
	dirs map[string]*dir
	// seen are the parameters that are being looked for.
	seen map[string]bool
}

func (s *source) values(d *dir, in *ast.FuncDecl, e ast.Expr) []string {
	if v, ok := literal(e); ok {
		return []string{v}
	}
	switch e := e.(type) {
	case *ast.Ident:
		if v, ok := d.consts[e.Name]; ok {
			return []string{v}
		}
		if at, n := parameter(in, e.Name); at >= 0 {
			return s.arguments(d, in, at, n)
		}
	case *ast.SelectorExpr:
		if e.Sel.Name == "label" { // of a list of steps: any label of the package
			var out []string
			for name, v := range d.consts {
				if strings.HasPrefix(name, "label") {
					out = append(out, v)
				}
			}
			return out
		}
	case *ast.BinaryExpr:
		var out []string
		for _, x := range s.values(d, in, e.X) {
			for _, y := range s.values(d, in, e.Y) {
				out = append(out, x+y)
			}
		}
		return out
	}
	s.t.Errorf("%s: cannot tell which fault labels this can be", s.fset.Position(e.Pos()))
	return nil
}

// parameter is the place of a parameter of a function, and how many there are.
func parameter(in *ast.FuncDecl, name string) (at, n int) {
	at = -1
	for _, field := range in.Type.Params.List {
		for _, p := range field.Names {
			if p.Name == name {
				at = n
			}
			n++
		}
	}
	return at, n
}

// arguments are the values of one parameter in all calls.
func (s *source) arguments(own *dir, in *ast.FuncDecl, at, n int) (out []string) {
	key := fmt.Sprintf("%p %d", in, at)
	if s.seen[key] {
		return nil
	}
	s.seen[key] = true
	defer delete(s.seen, key)
	for _, d := range s.dirs {
		if d != own && !in.Name.IsExported() {
			continue
		}
		d.calls(func(from *ast.FuncDecl, c *ast.CallExpr) {
			if called(c) != in.Name.Name || len(c.Args) < n-1 || len(c.Args) <= at {
				return
			}
			arg := c.Args[at]
			if _, other := arg.(*ast.FuncLit); other || lastName(arg) == "ctx" {
				return // another function of that name
			}
			out = append(out, s.values(d, from, arg)...)
		})
	}
	return out
}

// TestLabelsAreHit holds that a test fails or kills at each fault label: that
// it stands in a table of a test, or is armed by name. Tables of what a whole
// command passes are held to it by the tests themselves.
func TestLabelsAreHit(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	dirs := parse(t, fset, "guest", "host", "image", "protocol")
	labels := map[string]token.Pos{}
	s := &source{t: t, fset: fset, dirs: dirs, seen: map[string]bool{}}
	for _, d := range dirs {
		d.calls(func(in *ast.FuncDecl, c *ast.CallExpr) {
			if isPoint(c) {
				for _, label := range s.values(d, in, c.Args[0]) {
					labels[label] = c.Pos()
				}
			}
		})
	}
	if len(labels) < 100 {
		t.Errorf("%d labels found; the search does not fit the source", len(labels))
	}
	hit := tabled(parse(t, fset, "guest", "host", "image", "protocol", "integration"))
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		// After a transaction is a fault of the simulation's journal at each
		// label of one.
		if !hit[label] && !hit[strings.TrimSuffix(label, ".after")] {
			t.Errorf("%s: no test fails or kills at label %s", fset.Position(labels[label]), label)
		}
	}
	t.Logf("%d labels", len(labels))
}

// tabled are the strings of lists in tests and those armed by fault.Set, and
// the labels that a package lists for its tests.
func tabled(dirs map[string]*dir) map[string]bool {
	hit := map[string]bool{}
	add := func(e ast.Expr) {
		if v, ok := literal(e); ok {
			label, _, _ := strings.Cut(v, "#")
			hit[label] = true
		}
	}
	for _, d := range dirs {
		for _, f := range d.tests {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					for _, e := range n.Elts {
						if kv, ok := e.(*ast.KeyValueExpr); ok {
							e = kv.Key
						}
						add(e)
					}
				case *ast.CallExpr:
					if called(n) == "Set" && len(n.Args) == 3 {
						add(n.Args[0])
					}
					if called(n) == "Labels" && len(n.Args) == 0 {
						d.listed(hit)
					}
				}
				return true
			})
		}
	}
	return hit
}

// listed adds what the function Labels of a package lists.
func (d *dir) listed(hit map[string]bool) {
	for _, f := range d.funcs["Labels"] {
		ast.Inspect(f, func(n ast.Node) bool {
			if i, ok := n.(*ast.Ident); ok && d.consts[i.Name] != "" {
				hit[d.consts[i.Name]] = true
			}
			return true
		})
	}
}

// TestStepsHaveLabels holds that a function of the host that renames or syncs
// passes a label before. Traces of whole commands hold the same for what they
// do; this one sees what they do not get to.
func TestStepsHaveLabels(t *testing.T) {
	t.Parallel()
	steps := []string{"Rename", "Renameat", "Renameat2", "Sync", "Fsync", "Fdatasync", "SyncFileRange", "Syncfs", "Msync"}
	fset := token.NewFileSet()
	seen := 0
	for _, d := range parse(t, fset, "host", "image") {
		first := map[*ast.FuncDecl]token.Pos{}
		d.calls(func(in *ast.FuncDecl, c *ast.CallExpr) {
			if at, ok := first[in]; isPoint(c) && (!ok || c.Pos() < at) {
				first[in] = c.Pos()
			}
		})
		d.calls(func(in *ast.FuncDecl, c *ast.CallExpr) {
			if !slices.Contains(steps, called(c)) {
				return
			}
			seen++
			if at, ok := first[in]; !ok || c.Pos() < at {
				t.Errorf("%s: %s without a fault label", fset.Position(c.Pos()), called(c))
			}
		})
	}
	if seen < 5 {
		t.Errorf("%d steps found; the search does not fit the source", seen)
	}
}
