package archtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// budget is what agentd may have on disk, stripped.
const budget = 8 << 20

func TestAgentSize(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agentd")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, module+"/guest/cmd/agentd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build agentd: %v\n%s", err, out)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("agentd: %d bytes of %d", fi.Size(), budget)
	if fi.Size() > budget {
		t.Errorf("agentd has %d bytes, more than %d", fi.Size(), budget)
	}
}
