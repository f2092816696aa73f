package admin_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestKeep(t *testing.T) {
	c, _ := serve(t)
	_, m := published(t, c, nil)
	yes, no, at := true, false, "2030-01-02T03:04:05Z"
	got, err := c.ChangeCheckpoint(t.Context(), m.ID, admin.ChangeCheckpoint{Pinned: &yes, Expires: at})
	if err != nil || got.Class != "pinned" || got.Expires.Format(time.RFC3339) != at {
		t.Fatalf("pinned: %+v, %v", got, err)
	}
	if e := wantCode(t, c.RemoveCheckpoint(t.Context(), m.ID), protocol.CodeCheckpointInUse); e.Details["pinned"] != true {
		t.Errorf("%+v", e)
	}
	_, err = c.Dependents(t.Context(), m.ID)
	wantCode(t, err, protocol.CodeCheckpointInUse)
	_, err = c.RemoveCheckpoints(t.Context(), m.ID)
	wantCode(t, err, protocol.CodeCheckpointInUse)
	_, err = c.ChangeCheckpoint(t.Context(), m.ID, admin.ChangeCheckpoint{Expires: "soon"})
	wantCode(t, err, protocol.CodeInvalidArgument)
	_, err = c.ChangeCheckpoint(t.Context(), protocol.NewCheckpointID(), admin.ChangeCheckpoint{})
	wantCode(t, err, protocol.CodeUnknownCheckpoint)
	got, err = c.ChangeCheckpoint(t.Context(), m.ID, admin.ChangeCheckpoint{Pinned: &no, Lasts: true})
	if err != nil || got.Class != "named" || !got.Expires.IsZero() {
		t.Fatalf("unpinned: %+v, %v", got, err)
	}

	use, err := c.Usage(t.Context())
	if err != nil || len(use.Trees) != 1 || use.Trees[0].Sandbox != m.Sandbox || use.Trees[0].Checkpoints != 1 || use.Trees[0].Own < 1<<20 || use.Checkpoints.Entries != 1 {
		t.Errorf("usage: %+v, %v", use, err)
	}
	list, err := c.Dependents(t.Context(), m.ID)
	if err != nil || len(list) != 1 || list[0].ID != m.ID {
		t.Errorf("dependents: %+v, %v", list, err)
	}
	removed, err := c.RemoveCheckpoints(t.Context(), m.ID)
	if d := cmp.Diff([]protocol.CheckpointID{m.ID}, removed); d != "" || err != nil {
		t.Errorf("removed: %v (-want +got):\n%s", err, d)
	}
}

func TestCollect(t *testing.T) {
	c, _ := serve(t)
	_, m := published(t, c, nil)
	past := "2020-01-02T03:04:05Z"
	if _, err := c.ChangeCheckpoint(t.Context(), m.ID, admin.ChangeCheckpoint{Expires: past}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Collect(t.Context())
	if err != nil || len(got.Expired) != 1 || got.Expired[0] != m.ID || got.Freed == 0 || got.Checkpoints == nil || got.Templates == nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.Collect(t.Context()); err != nil || len(got.Expired) != 0 || got.Freed != 0 {
		t.Errorf("again: %+v, %v", got, err)
	}
}
