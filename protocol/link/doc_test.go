package link_test

import (
	"os"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/protocol/link"
)

// The records in the document are those of the code.
func TestDocument(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "<!-- records -->\n")
	got, _, ok := strings.Cut(rest, "<!-- end -->")
	if want := link.RecordTable(); !ok || got != want {
		t.Errorf("the document says\n%s\nwant\n%s", got, want)
	}
}
