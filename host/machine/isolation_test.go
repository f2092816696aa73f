package machine_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/protocol"
)

// An engine of resident machines says once what is missing; the others do not
// disturb the user of a command.
func TestIsolationIsSaid(t *testing.T) {
	t.Parallel()
	missing := t.TempDir() // no cgroup
	for _, resident := range []bool{false, true} {
		if resident && os.Geteuid() != 0 {
			dir := t.TempDir()
			_, err := machine.New(t.Context(), machine.Options{Driver: &driver{}, Dir: dir, Cache: dir, Resident: true})
			if protocol.CodeOf(err) != protocol.CodeNotSupported {
				t.Errorf("resident machines of an ordinary user: %v", err)
			}
			continue
		}
		var text bytes.Buffer
		e := open(t, machine.Options{Driver: &driver{}, Dir: t.TempDir(), Resident: resident, Cgroup: missing,
			Log: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		i := e.Isolation()
		if i != machine.LookIsolation(missing) || i.Cgroup != "" || i.Memory || i.Processes || i.Users != (os.Geteuid() == 0) || !strings.Contains(i.Missing, missing) {
			t.Errorf("isolation %+v", i)
		}
		if n := strings.Count(text.String(), "\n"); n != map[bool]int{true: 1}[resident] || resident && !strings.Contains(text.String(), missing) {
			t.Errorf("resident %v: said %q", resident, text.String())
		}
	}
}

func TestIsolationInWords(t *testing.T) {
	t.Parallel()
	for want, i := range map[string]machine.Isolation{
		"one user for all": {},
		"a user each, a cgroup each in /x, memory limited, processes limited": {Users: true, Cgroup: "/x", Memory: true, Processes: true},
	} {
		if got := i.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// What this host has must not be changed by the look.
	before, err := os.ReadDir("/sys/fs/cgroup")
	machine.LookIsolation("")
	after, err2 := os.ReadDir("/sys/fs/cgroup")
	if err == nil && err2 == nil && len(before) != len(after) {
		t.Errorf("%d cgroups, %d before", len(after), len(before))
	}
}
