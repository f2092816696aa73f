package boot_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/guest/boot"
)

const envSignals = "RATOON_TEST_SIGNALS"

// TestSignals sends itself every signal that can be taken, in a process of its
// own, and looks at what a program started from there inherits.
func TestSignals(t *testing.T) {
	t.Parallel()
	if os.Getenv(envSignals) != "" {
		raiseAll(t)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestSignals$", "-test.v")
	cmd.Env = append(os.Environ(), envSignals+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func raiseAll(t *testing.T) {
	if err := boot.TakeSignals(); err != nil {
		t.Fatal(err)
	}
	for sig := unix.Signal(1); sig <= 64; sig++ {
		if sig == unix.SIGKILL || sig == unix.SIGSTOP {
			continue
		}
		if err := unix.Kill(os.Getpid(), sig); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Fatalf("send signal %d: %v", sig, err)
		}
	}
	out, err := exec.Command("grep", "SigIgn", "/proc/self/status").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(strings.TrimPrefix(string(out), "SigIgn:")); got != "0000000000000000" {
		t.Errorf("a program starts with signals ignored: %s", got)
	}
}
