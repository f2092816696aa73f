package boot_test

import (
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/guest/boot"
)

func TestCmdline(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"console=ttyS0\n": "/dev/vda agentd worker --carrier serial",
		"ratoon.carrier=vsock ratoon.debug ratoon.root=/dev/vdb": "/dev/vdb agentd worker --carrier vsock --debug",
		"ratoon.carrier=pigeon":                                  "error",
		"ratoon.root=../x":                                       "error",
	} {
		root, worker, err := boot.ParseCmdline(line)
		got := root + " " + strings.Join(worker, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", line, got, want)
		}
	}
}
