package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ratoon-project/ratoon/host/cli"
	"github.com/ratoon-project/ratoon/internal/fault"
)

// TestExportFails: an export that fails leaves no file. Not parallel: labels
// are armed in the whole process.
func TestExportFails(t *testing.T) {
	dir := t.TempDir()
	must(kept(filepath.Join(dir, "state")))
	path := filepath.Join(dir, "file")
	export := func() (int, string) {
		var out, errs bytes.Buffer
		status := cli.Run(t.Context(), []string{"--state-dir", filepath.Join(dir, "state"), "checkpoint", "export", "cp-aaaaaaaaaaaaaaaa", path}, strings.NewReader(""), &out, &errs)
		return status, errs.String()
	}
	for _, label := range []string{"cli.export.fsync", "cli.export.rename"} {
		clear := fault.Set(label, 1, fault.Error(syscall.ENOSPC))
		status, errs := export()
		clear()
		if status != 125 || !strings.Contains(errs, "remedy: free disk space") {
			t.Errorf("%s: status %d\n%s", label, status, errs)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s: left %v, %v", label, left, err)
		}
	}
	if status, errs := export(); status != 0 {
		t.Errorf("status %d\n%s", status, errs)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want a file for its owner only", info, err)
	}
}
