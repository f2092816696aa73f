package checkpoint_test

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/host/checkpoint"
)

const doc = "../../docs/CHECKPOINTS.md"

// fields lists the JSON names of a struct and of the structs in it.
func fields(typ reflect.Type) []string {
	var out []string
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		out = append(out, name)
		t := f.Type
		if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() == reflect.Struct && t.PkgPath() != "time" && f.Name != "Runs" {
			out = append(out, fields(t)...)
		}
	}
	return out
}

// TestDoc holds the page to the code: each field of a manifest is described,
// and its examples can be read.
func TestDoc(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(doc)
	check(t, err)
	for _, typ := range []reflect.Type{reflect.TypeFor[checkpoint.Manifest](), reflect.TypeFor[checkpoint.BaseManifest]()} {
		for _, name := range fields(typ) {
			if !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("%s does not describe `%s`", doc, name)
			}
		}
	}
	blocks := regexp.MustCompile("(?s)```manifest\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d example manifests, want 2", len(blocks))
	}
	for i, wantDurable := range []bool{false, true} {
		m, err := checkpoint.Decode([]byte(blocks[i][1]))
		check(t, err)
		if m.Durable != wantDurable || (m.Digest != "") != wantDurable || len(m.Files.Pages.Runs) != 3 {
			t.Errorf("example %d: durable %t, digest %q, %d runs", i, m.Durable, m.Digest, len(m.Files.Pages.Runs))
		}
		for line := range strings.Lines(blocks[i][1]) {
			if !json.Valid([]byte(line)) {
				t.Errorf("example %d: not a line of JSON: %s", i, line)
			}
		}
	}
}
