package admin_test

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestVerify(t *testing.T) {
	c, _ := serve(t)
	s, m := published(t, c, nil)
	_, sound := published(t, c, nil)
	files, err := s.Files(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(files.State), os.WriteFile(files.State, []byte("stbte"), 0o400)); err != nil {
		t.Fatal(err)
	}
	verify := func(ids ...protocol.CheckpointID) map[protocol.CheckpointID][]checkpoint.Damage {
		out := map[protocol.CheckpointID][]checkpoint.Damage{}
		if err := c.Verify(t.Context(), ids, nil, func(r checkpoint.Report) error {
			for i := range r.Damage {
				r.Damage[i].Reason = ""
			}
			out[r.ID] = r.Damage
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	damage := []checkpoint.Damage{{File: "state", Code: protocol.CodeCheckpointLost}}
	if d := cmp.Diff(map[protocol.CheckpointID][]checkpoint.Damage{m.ID: damage, sound.ID: nil}, verify()); d != "" {
		t.Errorf("all (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[protocol.CheckpointID][]checkpoint.Damage{m.ID: damage}, verify(m.ID)); d != "" {
		t.Errorf("one (-want +got):\n%s", d)
	}
	wantCode(t, c.Verify(t.Context(), []protocol.CheckpointID{protocol.NewCheckpointID()}, nil, nil), protocol.CodeUnknownCheckpoint)
	wantCode(t, c.Verify(t.Context(), []protocol.CheckpointID{"../x"}, nil, nil), protocol.CodeInvalidArgument)
}
