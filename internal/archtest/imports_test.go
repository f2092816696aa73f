package archtest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ratoon-project/ratoon"

// pkg is what `go list -json` tells about a package.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
}

func list(t *testing.T, patterns ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps"}, patterns...)...)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", patterns, err, stderr.String())
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// area is the top-level directory of a package of this module, "" for others.
func area(path string) string {
	rest, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

// mayImport says which areas each layer may use besides itself. internal holds
// mechanical helpers and is checked to import none of the layers.
var mayImport = map[string][]string{
	"internal":  {},
	"protocol":  {"internal"},
	"workspace": {"internal", "protocol"},
	"python":    {},
	"image":     {"internal", "protocol", "python"},
	"guest":     {"internal", "protocol", "workspace"},
	"host":      {"internal", "protocol", "workspace", "image", "python"},
}

// mayTest adds what only the tests of a layer may use: guest tests boot
// machines from images.
var mayTest = map[string][]string{
	"guest": {"image", "python"},
}

func TestLayers(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, p := range list(t, module+"/...") {
		from := area(p.ImportPath)
		allowed, ok := mayImport[from]
		if !ok {
			continue // integration, examples and bench may use all
		}
		seen++
		check(t, p.ImportPath, p.Imports, append(allowed, from))
		tests := append(slices.Clone(p.TestImports), p.XTestImports...)
		check(t, p.ImportPath+" (test)", tests, slices.Concat(allowed, mayTest[from], []string{from}))
	}
	if seen < len(mayImport) {
		t.Errorf("saw %d packages of the layers; the list above does not fit the tree", seen)
	}
}

func check(t *testing.T, path string, imports, allowed []string) {
	t.Helper()
	for _, imp := range imports {
		if to := area(imp); to != "" && !slices.Contains(allowed, to) {
			t.Errorf("%s imports %s; it may use only %v", path, imp, allowed)
		}
	}
}

// TestAgentIsSmall holds what agentd must do without: it is resident in every
// guest and its memory is captured in every checkpoint.
func TestAgentIsSmall(t *testing.T) {
	t.Parallel()
	banned := []string{"net/http", "google.golang.org/grpc", "github.com/prometheus/", "go.opentelemetry.io/", module + "/host", module + "/image"}
	for _, p := range list(t, module+"/guest/cmd/agentd") {
		for _, dep := range p.Deps {
			for _, b := range banned {
				if dep == strings.TrimSuffix(b, "/") || strings.HasPrefix(dep, strings.TrimSuffix(b, "/")+"/") {
					t.Errorf("%s depends on %s", p.ImportPath, dep)
				}
			}
		}
	}
}
