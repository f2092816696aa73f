package agent_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/guest/agent"
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
)

const (
	parent = protocol.TimelineID("tl-parent")
	child  = protocol.TimelineID("tl-child")
)

// who is a caller without a process.
type who int

func (w who) Watch() (int, uint64) { return int(w), 77 }

// show renders effects so that tests read like the protocol.
func show(effects []agent.Effect) []string {
	out := []string{}
	for _, e := range effects {
		out = append(out, showOne(e))
	}
	return out
}

func showOne(e agent.Effect) string {
	switch e := e.(type) {
	case agent.Keep:
		return fmt.Sprintf("keep %s seen=%d thawed=%d", e.Record.Timeline, e.Record.Seen, e.Record.Thawed)
	case agent.Stop:
		return fmt.Sprintf("stop %d", e.Freeze)
	case agent.Deliver:
		return fmt.Sprintf("deliver %d", e.Key.Sequence)
	case agent.Arm:
		return fmt.Sprintf("arm %d", e.Freeze)
	case agent.Fix:
		return fmt.Sprintf("fix new=%v", e.NewTimeline)
	case agent.Answer:
		if e.Outcome.Error != nil {
			return fmt.Sprintf("answer %d %s resumed=%v", e.Outcome.Key.Sequence, e.Outcome.Error.Code, e.Resumed)
		}
		return fmt.Sprintf("answer %d ok resumed=%v", e.Outcome.Key.Sequence, e.Resumed)
	case agent.Notify:
		return fmt.Sprintf("notify %d %s", e.Event.Count, e.Event.Reason)
	case agent.Observe:
		if e.Watch == nil {
			return "observe none"
		}
		return fmt.Sprintf("observe pid %d", e.Watch.PID)
	case agent.Send:
		return "send " + showMessage(e.Message)
	}
	return fmt.Sprintf("%T", e)[len("agent."):]
}

func showMessage(m protocol.Message) string {
	switch m := m.(type) {
	case *protocol.Hello:
		return fmt.Sprintf("hello %s %d pending=%d", m.State, m.Freeze, len(m.Pending))
	case *protocol.Call:
		return fmt.Sprintf("call %d %s", m.Key.Sequence, m.Kind)
	case *protocol.CallGone:
		return fmt.Sprintf("call-gone %d", m.Key.Sequence)
	case *protocol.Drained:
		return fmt.Sprintf("drained %d", m.Freeze)
	case *protocol.Quiesced:
		return fmt.Sprintf("quiesced %d", m.Freeze)
	case *protocol.PrepareFailed:
		return fmt.Sprintf("prepare-failed %d %s", m.Freeze, m.Error.Code)
	case *protocol.Thawed:
		return fmt.Sprintf("thawed %d %s", m.Freeze, m.Timeline)
	case *protocol.OutcomeAck:
		return fmt.Sprintf("outcome-ack %d", m.Key.Sequence)
	}
	return m.Type()
}

// rig is a machine of the parent's timeline, running, with a link.
type rig struct {
	t *testing.T
	*agent.Machine
}

func newRig(t *testing.T, rec keep.Record) rig {
	t.Helper()
	if rec.Timeline == "" {
		rec.Timeline = parent
	}
	r := rig{t, agent.NewMachine(agent.MachineOptions{Start: 1, Record: rec})}
	r.want(r.LinkUp(), fmt.Sprintf("send hello running %d pending=0", rec.Seen))
	return r
}

func (r rig) want(got []agent.Effect, want ...string) {
	r.t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, show(got)); diff != "" {
		r.t.Fatalf("effects (-want +got):\n%s", diff)
	}
}

func (r rig) open(kind protocol.CallKind, caller who) protocol.Key {
	r.t.Helper()
	key, _, err := r.Open(kind, []byte{1}, caller)
	if err != nil {
		r.t.Fatalf("open: %v", err)
	}
	return key
}

// quiesce goes from running to quiesced by freeze f of key.
func (r rig) quiesce(f protocol.Freeze, key protocol.Key) {
	r.t.Helper()
	r.Receive(&protocol.Prepare{Freeze: f, Key: key})
	r.want(r.Stopped(f, protocol.Position{}, nil), fmt.Sprintf("send drained %d", f))
	r.want(r.Receive(&protocol.AckPosition{Freeze: f}), "Disarm", fmt.Sprintf("send quiesced %d", f), "End")
	r.state(protocol.StateQuiesced)
	r.want(r.LinkDown())
	r.LinkUp()
}

func (r rig) state(want protocol.State) {
	r.t.Helper()
	if got := r.State(); got != want {
		r.t.Fatalf("state: got %s, want %s", got, want)
	}
}

func thaw(f protocol.Freeze, tl protocol.TimelineID, key protocol.Key, outcome *protocol.Outcome) *protocol.Thaw {
	return &protocol.Thaw{Freeze: f, Timeline: tl, Incarnation: 1, Key: key, Outcome: outcome, Reason: protocol.ReasonSnapshot}
}

var ok = &protocol.Outcome{Value: []byte{1}}

func TestSnapshotOfRunningMachine(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	key, effects, _ := r.Open(protocol.CallSnapshot, nil, who(5))
	r.want(effects, "send call 1 snapshot")
	r.want(r.Receive(&protocol.Prepare{Freeze: 1, Key: key}), "keep tl-parent seen=1 thawed=0", "arm 1", "stop 1")
	r.state(protocol.StatePreparing)
	r.want(r.Stopped(1, protocol.Position{}, nil), "send drained 1")
	r.state(protocol.StatePreparing)
	r.want(r.Receive(&protocol.AckPosition{Freeze: 1}), "Disarm", "send quiesced 1", "End")
	r.state(protocol.StateQuiesced)
	r.want(r.LinkDown())
	r.want(r.LinkUp(), "send hello quiesced 1 pending=1")

	th := thaw(1, parent, key, ok)
	r.want(r.Receive(th), "keep tl-parent seen=1 thawed=1", "fix new=false")
	r.state(protocol.StateQuiesced)
	r.want(r.Fixed(th), "answer 1 ok resumed=true", "notify 1 snapshot", "Resume", "send thawed 1 tl-parent")
	r.state(protocol.StateRunning)
	r.want(r.Receive(th), "keep tl-parent seen=1 thawed=1", "send thawed 1 tl-parent")
}

func TestPrepareComparesFreezeNumbers(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{Seen: 4})
	r.want(r.Receive(&protocol.Prepare{Freeze: 4}), "send hello running 4 pending=0")
	r.want(r.Receive(&protocol.Prepare{Freeze: 5}), "keep tl-parent seen=5 thawed=0", "arm 5", "stop 5")
	r.want(r.Receive(&protocol.Prepare{Freeze: 5}), "send hello preparing 5 pending=0")
	r.want(r.Receive(&protocol.Abort{Freeze: 4}), "send hello preparing 5 pending=0")
	r.want(r.Receive(&protocol.AckPosition{Freeze: 5}), "send hello preparing 5 pending=0") // not drained yet
	r.Stopped(5, protocol.Position{}, nil)
	r.want(r.Receive(&protocol.AckPosition{Freeze: 4}), "send hello preparing 5 pending=0")
	r.state(protocol.StatePreparing)
}

func TestNewerPrepareReplacesOlder(t *testing.T) {
	t.Parallel()
	t.Run("while users are being stopped", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, keep.Record{})
		r.Receive(&protocol.Prepare{Freeze: 1})
		r.want(r.Receive(&protocol.Prepare{Freeze: 2}), "keep tl-parent seen=2 thawed=0", "arm 2", "Cancel")
		r.want(r.Stopped(1, protocol.Position{}, nil), "Resume", "stop 2")
		r.want(r.Stopped(2, protocol.Position{}, nil), "send drained 2")
	})
	t.Run("after they were", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, keep.Record{})
		r.Receive(&protocol.Prepare{Freeze: 1})
		r.Stopped(1, protocol.Position{}, nil)
		r.want(r.Receive(&protocol.Prepare{Freeze: 2}), "keep tl-parent seen=2 thawed=0", "arm 2", "Resume", "stop 2")
		r.want(r.Deadline(1))
	})
	t.Run("that was aborted", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, keep.Record{})
		key := r.open(protocol.CallSnapshot, 1)
		r.Receive(&protocol.Prepare{Freeze: 1, Key: key})
		r.want(r.Receive(&protocol.Abort{Freeze: 1}), "Cancel")
		r.want(r.Receive(&protocol.Prepare{Freeze: 2}),
			"keep tl-parent seen=2 thawed=0", "arm 2", "answer 1 prepare_failed resumed=false", "send prepare-failed 1 prepare_failed", "Cancel")
		r.want(r.Stopped(1, protocol.Position{}, errors.New("cancelled")), "stop 2")
	})
}

func TestPreparingIsUndone(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		event func(rig) []agent.Effect
		tail  []string
	}{
		"by abort":       {func(r rig) []agent.Effect { return r.Receive(&protocol.Abort{Freeze: 1}) }, []string{"send prepare-failed 1 prepare_failed"}},
		"by deadline":    {func(r rig) []agent.Effect { return r.Deadline(1) }, []string{"send prepare-failed 1 prepare_failed"}},
		"by a lost link": {func(r rig) []agent.Effect { return r.LinkDown() }, nil},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := func() rig {
				r := newRig(t, keep.Record{})
				key := r.open(protocol.CallSnapshot, 1)
				r.open(protocol.CallLLM, 2) // must stay pending
				r.Receive(&protocol.Prepare{Freeze: 1, Key: key})
				return r
			}
			end := append([]string{"Disarm", "answer 1 prepare_failed resumed=false"}, way.tail...)

			r := start()
			r.Stopped(1, protocol.Position{}, nil)
			r.want(way.event(r), append([]string{"Resume"}, end...)...)
			r.state(protocol.StateRunning)
			if n := len(r.Hello().Pending); n != 1 {
				t.Errorf("%d calls pending, want the bystander", n)
			}

			r = start()
			r.want(way.event(r), "Cancel")
			r.state(protocol.StatePreparing)
			r.want(r.Stopped(1, protocol.Position{}, nil), append([]string{"Resume"}, end...)...)

			r = start()
			way.event(r)
			r.want(r.Stopped(1, protocol.Position{}, errors.New("cancelled")), end...)
			r.state(protocol.StateRunning)
		})
	}
	t.Run("by users that do not freeze", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, keep.Record{})
		key := r.open(protocol.CallSnapshot, 1)
		r.Receive(&protocol.Prepare{Freeze: 1, Key: key})
		r.want(r.Stopped(1, protocol.Position{}, errors.New("stuck")), "Disarm", "answer 1 prepare_failed resumed=false", "send prepare-failed 1 prepare_failed")
	})
}

func TestOnlyItsThawEndsQuiesced(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	key := r.open(protocol.CallSnapshot, 1)
	r.quiesce(3, key)
	hello := "send hello quiesced 3 pending=1"
	r.want(r.Deadline(3))
	r.want(r.Receive(&protocol.Abort{Freeze: 3}), hello)
	r.want(r.Receive(&protocol.Prepare{Freeze: 4}), hello)
	r.want(r.Receive(&protocol.AckPosition{Freeze: 3}), hello)
	r.want(r.Receive(&protocol.Outcome{Key: key, Value: []byte{1}}), hello) // and no acknowledgement
	r.want(r.Receive(&protocol.Attach{Timeline: parent}), hello)
	for _, f := range []protocol.Freeze{0, 2, 4} {
		r.want(r.Receive(thaw(f, parent, key, ok)), hello)
	}
	r.want(r.LinkDown())
	r.state(protocol.StateQuiesced)
}

func TestThawOfACopy(t *testing.T) {
	t.Parallel()
	t.Run("interrupts all but the named call", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, keep.Record{})
		key := r.open(protocol.CallBranch, 42)
		r.open(protocol.CallLLM, 2)
		r.quiesce(1, key)
		r.Gone(protocol.Key{Timeline: parent, Start: 1, Sequence: 9})
		th := thaw(1, child, key, ok)
		r.want(r.Receive(th), "keep tl-child seen=0 thawed=1", "fix new=true")
		r.want(r.Fixed(th), "answer 1 ok resumed=true", "answer 2 interrupted_by_fork resumed=true",
			"observe pid 42", "notify 1 snapshot", "Resume", "send thawed 1 tl-child")
		if k := r.open(protocol.CallTree, 1); k != (protocol.Key{Timeline: child, Start: 1, Sequence: 3}) {
			t.Errorf("first key of the child: %v", k)
		}
		r.want(r.Receive(&protocol.Prepare{Freeze: 1}), "keep tl-child seen=1 thawed=1", "arm 1", "stop 1")
	})
	t.Run("interrupts the named call too, if it stays without outcome", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, keep.Record{})
		key := r.open(protocol.CallBranch, 42)
		r.quiesce(1, key)
		th := thaw(1, child, key, nil)
		r.Receive(th)
		r.want(r.Fixed(th), "answer 1 interrupted_by_fork resumed=true", "observe pid 42", "notify 1 snapshot", "Resume", "send thawed 1 tl-child")
	})
	t.Run("without a key keeps who was watched", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, keep.Record{Watch: &keep.Watch{PID: 9}})
		r.quiesce(1, protocol.Key{})
		th := thaw(1, child, protocol.Key{}, nil)
		r.Receive(th)
		r.want(r.Fixed(th), "observe pid 9", "notify 1 snapshot", "Resume", "send thawed 1 tl-child")
	})
}

func TestCallersThatCannotBeWatched(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	key := r.open(protocol.CallBranch, 0) // in another pid namespace
	r.quiesce(1, key)
	th := thaw(1, child, key, ok)
	r.Receive(th)
	r.want(r.Fixed(th), "answer 1 ok resumed=true", "observe none", "notify 1 snapshot", "Resume", "send thawed 1 tl-child")

	r = newRig(t, keep.Record{})
	key = r.open(protocol.CallBranch, 4)
	r.quiesce(1, key)
	r.Gone(key) // killed while frozen: its end must be reported
	th = thaw(1, child, key, ok)
	r.Receive(th)
	r.want(r.Fixed(th), "observe pid 0", "notify 1 snapshot", "Resume", "send thawed 1 tl-child")
}

func TestThawOfTheSameTimelineLeavesCallsPending(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	key := r.open(protocol.CallSnapshot, 1)
	other := r.open(protocol.CallLLM, 2)
	r.quiesce(1, key)
	th := thaw(1, parent, key, nil)
	r.Receive(th)
	r.want(r.Fixed(th), "notify 1 snapshot", "Resume", "send thawed 1 tl-parent")
	r.want(r.Receive(&protocol.Outcome{Key: other}), "answer 2 ok resumed=true", "send outcome-ack 2")
	r.want(r.Receive(&protocol.Outcome{Key: key}), "answer 1 ok resumed=true", "send outcome-ack 1")
	r.want(r.Receive(&protocol.Outcome{Key: key}), "send outcome-ack 1") // once
}

func TestThawAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	r.quiesce(1, protocol.Key{})
	th := thaw(1, child, protocol.Key{}, nil)
	r.Receive(th)
	r.Fixed(th)
	r.want(r.Receive(th), "keep tl-child seen=0 thawed=1", "send thawed 1 tl-child")
	r.want(r.Receive(thaw(2, child, protocol.Key{}, nil)), "send hello running 0 pending=0")
	other := thaw(1, child, protocol.Key{}, nil)
	other.Incarnation = 2
	r.want(r.Receive(other), "send hello running 0 pending=0")
	fresh := newRig(t, keep.Record{})
	fresh.want(fresh.Receive(thaw(0, parent, protocol.Key{}, nil)), "send hello running 0 pending=0")
	restarted := newRig(t, keep.Record{Timeline: child, Thawed: 1, Incarnation: 1})
	restarted.want(restarted.Receive(th), "keep tl-child seen=0 thawed=1", "send thawed 1 tl-child")
}

func TestNotFixedStaysQuiesced(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	r.quiesce(1, protocol.Key{})
	th := thaw(1, child, protocol.Key{}, nil)
	r.Receive(th)
	r.want(r.NotFixed(), "send hello quiesced 1 pending=0")
	r.want(r.Receive(th), "keep tl-child seen=0 thawed=1", "fix new=true")
}

func TestOutcomeWhilePreparing(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	key := r.open(protocol.CallLLM, 1)
	r.Receive(&protocol.Prepare{Freeze: 1})
	r.want(r.Receive(&protocol.Outcome{Key: key}))
	r.Stopped(1, protocol.Position{}, nil)
	r.want(r.Receive(&protocol.Abort{Freeze: 1}), "Resume", "Disarm", "send prepare-failed 1 prepare_failed", "answer 1 ok resumed=false", "send outcome-ack 1")

	key = r.open(protocol.CallLLM, 1)
	r.Receive(&protocol.Prepare{Freeze: 2})
	r.Receive(&protocol.Outcome{Key: key})
	r.want(r.LinkDown(), "Cancel")
	r.want(r.Stopped(2, protocol.Position{}, errors.New("cancelled")), "Disarm") // lost with its link: the host sends it again
}

func TestEpochs(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{Stream: "st-a", Epoch: 5})
	for _, c := range []struct {
		stream protocol.StreamID
		epoch  uint64
		want   uint64
	}{{"st-a", 4, 5}, {"st-a", 5, 5}, {"st-a", 7, 7}, {"st-b", 1, 1}} {
		effects := r.Receive(&protocol.Attach{Timeline: parent, Stream: c.stream, Epoch: c.epoch})
		last := effects[len(effects)-1].(agent.Send).Message.(*protocol.Attached)
		if last.Epoch != c.want {
			t.Errorf("attach %s/%d: epoch %d, want %d", c.stream, c.epoch, last.Epoch, c.want)
		}
	}
	r.want(r.Receive(&protocol.Attach{Timeline: child}), "send hello running 0 pending=0")
}

func TestCallsWaitForALinkAndForUsersToRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	sent := r.open(protocol.CallLLM, 1)
	r.LinkDown()
	_, effects, _ := r.Open(protocol.CallTree, nil, who(1))
	r.want(effects)
	r.want(r.Gone(sent))
	// The host never had call 2, so hello must not list it: it would be
	// answered HostRestarted.
	r.want(r.LinkUp(), "send hello running 0 pending=0", "send call 2 tree", "send call-gone 1")
	r.want(r.LinkDown())
	r.want(r.LinkUp(), "send hello running 0 pending=1")

	r.Receive(&protocol.Prepare{Freeze: 1})
	_, effects, _ = r.Open(protocol.CallTree, nil, who(1))
	r.want(effects)
	r.Stopped(1, protocol.Position{}, nil)
	r.Receive(&protocol.AckPosition{Freeze: 1})
	r.LinkDown()
	r.want(r.LinkUp(), "send hello quiesced 1 pending=1")
	th := thaw(1, parent, protocol.Key{}, nil)
	r.Receive(th)
	r.want(r.Fixed(th), "notify 1 snapshot", "Resume", "send thawed 1 tl-parent", "send call 3 tree")
}

// The host ends the machine at some calls, which are sent when it has the
// output.
func TestLastCallFollowsTheOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	key, effects, _ := r.Open(protocol.CallFinish, nil, who(1))
	r.want(effects, "deliver 1")
	_, effects, _ = r.Open(protocol.CallTree, nil, who(2))
	r.want(effects, "send call 2 tree")
	r.LinkDown()
	r.want(r.LinkUp(), "send hello running 0 pending=1")
	r.want(r.Delivered(key), "send call 1 finish")
	r.want(r.Delivered(key))

	given, _, _ := r.Open(protocol.CallFinish, nil, who(1))
	r.want(r.Gone(given))
	r.want(r.Delivered(given))

	key, _, _ = r.Open(protocol.CallFinish, nil, who(1))
	r.Receive(&protocol.Prepare{Freeze: 1})
	r.want(r.Delivered(key)) // users are being stopped
	r.Stopped(1, protocol.Position{}, nil)
	r.Receive(&protocol.AckPosition{Freeze: 1})
	r.LinkDown()
	r.LinkUp()
	th := thaw(1, child, protocol.Key{}, nil)
	r.Receive(th)
	for _, e := range r.Fixed(th) {
		if s, ok := e.(agent.Send); ok && s.Message.Type() == "call" {
			t.Errorf("a copy sends a call of its original: %+v", s.Message)
		}
	}
	r.want(r.Delivered(key))

	r = newRig(t, keep.Record{})
	for i, kind := range []protocol.CallKind{protocol.CallRestore, protocol.CallAdopt} {
		key, effects, _ := r.Open(kind, nil, who(1))
		r.want(effects, fmt.Sprintf("deliver %d", i+1))
		r.want(r.Delivered(key), fmt.Sprintf("send call %d %s", i+1, kind))
	}
}

func TestPendingCallsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	for range protocol.MaxPendingCalls {
		r.open(protocol.CallTree, 1)
	}
	if _, _, err := r.Open(protocol.CallTree, nil, who(1)); err == nil || err.Code != protocol.CodeBusy {
		t.Fatalf("one more: %v, want busy", err)
	}
	r.Gone(protocol.Key{Timeline: parent, Start: 1, Sequence: 1})
	r.open(protocol.CallTree, 1)
}

func TestCallerExited(t *testing.T) {
	t.Parallel()
	r := newRig(t, keep.Record{})
	key := r.open(protocol.CallBranch, 42)
	r.quiesce(1, key)
	th := thaw(1, child, key, ok)
	r.Receive(th)
	r.Fixed(th)
	w := *r.Watched()
	r.want(r.Exited(keep.Watch{Key: key, PID: 41}, protocol.ExitStatus{}, nil))
	r.want(r.Exited(w, protocol.ExitStatus{Code: 3}, nil), "send caller-exited")
	r.want(r.Exited(w, protocol.ExitStatus{Code: 3}, nil))
	r.LinkDown()
	r.want(r.LinkUp(), "send hello running 0 pending=0", "send caller-exited")
}

func TestLostAcceptsNothing(t *testing.T) {
	t.Parallel()
	m := agent.NewMachine(agent.MachineOptions{Start: 2, Record: keep.Record{Timeline: parent, Seen: 3}, Lost: true})
	r := rig{t, m}
	hello := "send hello lost 3 pending=0"
	r.want(m.LinkUp(), hello)
	for _, msg := range []protocol.Message{
		&protocol.Prepare{Freeze: 9}, &protocol.AckPosition{Freeze: 3}, &protocol.Abort{Freeze: 3},
		thaw(3, parent, protocol.Key{}, nil), &protocol.Attach{Timeline: parent}, &protocol.Outcome{},
	} {
		r.want(m.Receive(msg), hello)
	}
	if _, _, err := m.Open(protocol.CallTree, nil, who(1)); err == nil || err.Code != protocol.CodeAgentRestarted {
		t.Errorf("open: %v", err)
	}
}
