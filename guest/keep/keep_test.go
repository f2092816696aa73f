package keep_test

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestKeep(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	var saved []keep.Record
	served := make(chan error, 1)
	want := keep.First{Start: 3, Record: keep.Record{
		Timeline: "tl-a", Seen: 2, Thawed: 1, Epoch: 9, Count: 4,
		Identity: protocol.Identity{Node: "0.1"}, Watch: &keep.Watch{Key: protocol.Key{Timeline: "tl-a", Start: 1, Sequence: 5}, PID: 7, Started: 8},
	}}
	go func() { served <- keep.Serve(ours, want, func(r keep.Record) { saved = append(saved, r) }) }()
	c, first, err := keep.Dial(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	next := first.Record
	next.Seen, next.Watch = 3, nil
	if err := c.Keep(next); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if diff := cmp.Diff([]keep.Record{next}, saved); diff != "" {
		t.Errorf("saved (-want +got):\n%s", diff)
	}
}

func TestKeepWithoutPID1(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	go keep.Serve(ours, keep.First{Start: 1}, func(keep.Record) { ours.Close() })
	c, _, err := keep.Dial(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Keep(keep.Record{}); err == nil {
		t.Error("nobody has the record, and Keep says so to nobody")
	}
}
