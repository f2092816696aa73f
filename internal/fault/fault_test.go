package fault_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/ratoon-project/ratoon/internal/fault"
)

// childEnv makes the test binary pass a label and end.
const childEnv = "RATOON_TEST_FAULT_LABEL"

func TestMain(m *testing.M) {
	if label := os.Getenv(childEnv); label != "" {
		err := fault.Point(label)
		if errors.Is(err, syscall.ENOSPC) {
			os.Exit(28)
		}
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What the environment arms happens at its label, and at no other.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec   string
		status syscall.WaitStatus // as wait gives it
	}{
		{"", 0}, {"b=kill", 0}, {"a#2=kill", 0}, {"a=enospc", 28 << 8}, {"b=kill,a=eio", 1 << 8},
		{"a=kill", syscall.WaitStatus(syscall.SIGKILL)}, {"a=burn", 2 << 8}, {"a", 2 << 8}, {"a#0=kill", 2 << 8},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=a", fault.Env+"="+c.spec)
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.Sys().(syscall.WaitStatus); got != c.status {
			t.Errorf("%q: got %#x, want %#x", c.spec, got, c.status)
		}
	}
}

// A process that stops at its label goes on when it is told.
func TestStop(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=a", fault.Env+"=a=stop")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("status %#x, %v; want it stopped", status, err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
