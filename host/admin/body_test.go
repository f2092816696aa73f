package admin_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/protocol"
)

// FuzzDecode: a body is refused as an argument, or means the same to another
// reader of JSON.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"argv":["a"],"env":{"A":"b"},"rows":24,"timeout":1.5,"tty":true}`, `{"argv":[],"rows":2.4e1}`, `{"argv":null}`, `{"argv":["a"],"ARGV":[]}`, ``, `{"argv":[]}}`, `{"argv":["\ud800"]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got, again admin.StartExec
		if err := admin.Decode(body, &got); err != nil {
			if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
				t.Fatalf("got %v, want %s", err, protocol.CodeInvalidArgument)
			}
			return
		}
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(got, again, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("%s as (-) is %s as (+):\n%s", body, b, d)
		}
		var other map[string]any
		if err := json.Unmarshal(body, &other); len(body) > 0 && err != nil {
			t.Fatal(err)
		}
	})
}
