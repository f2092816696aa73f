package protocol_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/protocol"
)

func TestErrorSurvivesJSON(t *testing.T) {
	t.Parallel()
	want := protocol.Errorf(protocol.CodeChildExited, "gone").With("status", int64(3)).With("signal", "").With("share", 0.5).
		With("children", map[string]any{"1": int64(-1)}).With("list", []any{int64(1 << 60), "x"})
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got protocol.Error
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(*want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
