package image_test

import (
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/image"
)

// maxCmdline is what both VMMs and the x86 boot protocol take
// (COMMAND_LINE_SIZE in arch/x86/include/asm/setup.h), less room for a
// driver's own words.
const maxCmdline = 2048 - 256

func TestCmdline(t *testing.T) {
	t.Parallel()
	if n := len(image.Cmdline); n > maxCmdline {
		t.Errorf("%d bytes, at most %d fit", n, maxCmdline)
	}
	seen := map[string]bool{}
	for word := range strings.FieldsSeq(image.Cmdline) {
		name, _, _ := strings.Cut(word, "=")
		if seen[name] {
			t.Errorf("%s is given twice", name)
		}
		seen[name] = true
	}
}
