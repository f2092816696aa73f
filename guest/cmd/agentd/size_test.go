package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxSize is the budget of the stripped binary: each guest holds it in memory.
const maxSize = 8 << 20

func TestSize(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agentd")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() >= maxSize {
		t.Errorf("agentd has %d bytes, the budget is %d", st.Size(), maxSize)
	}
	t.Logf("%d bytes", st.Size())
}

// TestImports holds what agentd must not pull in.
func TestImports(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("list dependencies: %v", err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if dep == "net/http" || strings.HasPrefix(dep, "google.golang.org/grpc") ||
			strings.HasPrefix(dep, "github.com/prometheus/") || strings.Contains(dep, "/ratoon/host/") {
			t.Errorf("agentd depends on %s", dep)
		}
	}
}
