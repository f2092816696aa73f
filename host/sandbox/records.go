package sandbox

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// State is the durable state of a sandbox or timeline.
type State string

// The states. A sandbox is running, hibernated, stopped or ended; a timeline
// live, hibernated, stopped or ended.
const (
	StateRunning    State = "running"
	StateLive       State = "live"
	StateHibernated State = "hibernated"
	StateStopped    State = "stopped"
	StateEnded      State = "ended"
)

// The durable records, as in section 1 of the protocol.
type (
	// SandboxRecord is the one record of its sandbox.
	SandboxRecord struct {
		ID        protocol.SandboxID
		Created   time.Time
		FirstLine protocol.LineID
		State     State
		Reason    *protocol.Error       `json:",omitempty"`
		Head      protocol.CheckpointID `json:",omitempty"`
		Spec      Spec
	}
	// LineRecord is a timeline and those that replace it by restore.
	LineRecord struct {
		ID        protocol.LineID
		Node      string
		Depth     int
		Children  int               // child lines made so far; numbers the nodes
		Branch    protocol.BranchID `json:",omitempty"` // slot; empty for the first line
		Index     int
		Parent    protocol.TimelineID `json:",omitempty"` // that made the branch
		Detached  bool                `json:",omitempty"`
		Label     string              `json:",omitempty"`
		Env       map[string]string   `json:",omitempty"`
		Expires   time.Time           `json:",omitzero"` // of a child with a timeout
		Hostname  string
		MachineID string
		Timeline  protocol.TimelineID
	}
	// TimelineRecord is one running copy's line of execution.
	TimelineRecord struct {
		ID          protocol.TimelineID
		Line        protocol.LineID
		Created     time.Time
		Origin      protocol.CheckpointID
		Stream      protocol.StreamID
		Epochs      uint64 // reserved
		Freezes     protocol.Freeze
		State       State
		Reason      *protocol.Error `json:",omitempty"`
		Incarnation uint64
		VM          protocol.VMID `json:",omitempty"`
		Hibernated  *Hibernated   `json:",omitempty"`
	}
	// Hibernated says how a timeline without a VM is woken.
	Hibernated struct {
		Checkpoint protocol.CheckpointID
		Freeze     protocol.Freeze
		Wake       bool // now, not when asked
	}
	// VMRecord is durable before anything of the VM exists on the host.
	VMRecord struct {
		ID          protocol.VMID
		Operation   string
		Timeline    protocol.TimelineID `json:",omitempty"`
		Incarnation uint64
		PID         int
		StartTime   uint64
	}
	// StreamRecord is one stream of the workspace log.
	StreamRecord struct {
		ID     protocol.StreamID
		Parent protocol.Position
		Owner  protocol.TimelineID
	}
	// BranchRecord is a committed branch that is not over.
	BranchRecord struct {
		ID         protocol.BranchID
		Key        protocol.Key        // of the parent's call; zero: an operator's
		Parent     protocol.TimelineID `json:",omitempty"`
		ParentLine protocol.LineID
		Checkpoint protocol.CheckpointID
		Freeze     protocol.Freeze
		Caller     protocol.Key // in the checkpoint
		CallerKind protocol.CallKind
		Children   []BranchChild
		MaxLive    int
		Timeout    time.Duration
	}
	// BranchChild is one slot of a BranchRecord.
	BranchChild struct {
		Index    int
		State    ChildState
		Line     protocol.LineID     `json:",omitempty"`
		Timeline protocol.TimelineID `json:",omitempty"`
		VM       protocol.VMID       `json:",omitempty"`
		Stream   protocol.StreamID   `json:",omitempty"`
		Payload  []byte              `json:",omitempty"`
		Label    string              `json:",omitempty"`
		Env      map[string]string   `json:",omitempty"`
	}
	// RestoreRecord is a committed restore that is not over.
	RestoreRecord struct {
		Line     protocol.LineID
		Old, New protocol.TimelineID
		VM       protocol.VMID
		Target   protocol.CheckpointID
		Kept     protocol.CheckpointID `json:",omitempty"`
		Freeze   protocol.Freeze
		Caller   protocol.Key
		Payload  []byte                 `json:",omitempty"`
		Execs    []protocol.ExecOffsets `json:",omitempty"` // of the old one's last quiesced
	}
	// ResultRecord is how one slot ended; written once.
	ResultRecord struct {
		Branch    protocol.BranchID
		Parent    protocol.TimelineID `json:",omitempty"`
		Result    protocol.ChildResult
		Value     []byte `json:",omitempty"` // Result.Result
		Collected bool
	}
)

// ChildState is where a slot of a committed branch is.
type ChildState string

// The states of a slot.
const (
	ChildWaiting ChildState = "waiting" // for a later wave
	ChildLoaded  ChildState = "loaded"  // its timeline exists; thaw not yet acknowledged
	ChildOver    ChildState = "over"    // thawed, or has a result
)

// table is one kind of record in the journal.
type table[T any] struct{ name string }

var (
	sandboxes = table[SandboxRecord]{"sandbox"}
	lines     = table[LineRecord]{"line"}
	timelines = table[TimelineRecord]{"timeline"}
	vms       = table[VMRecord]{"vm"}
	streams   = table[StreamRecord]{"stream"}
	branches  = table[BranchRecord]{"branch"}
	restores  = table[RestoreRecord]{"restore"}
	results   = table[ResultRecord]{"result"}
	ledgers   = table[ledgerRecord]{"ledger"}
)

// Tables names the journal's tables.
func Tables() []string {
	return []string{sandboxes.name, lines.name, timelines.name, vms.name, streams.name,
		branches.name, restores.name, results.name, ledgers.name, commitTable}
}

func (t table[T]) get(tx Tx, key string) (T, bool, error) {
	var v T
	b := tx.Get(t.name, key)
	if b == nil {
		return v, false, nil
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, false, fmt.Errorf("decode %s record %s: %w", t.name, key, err)
	}
	return v, true, nil
}

// need is get for a record that must be there.
func (t table[T]) need(tx Tx, key string) (T, error) {
	v, ok, err := t.get(tx, key)
	if err == nil && !ok {
		err = protocol.Errorf(protocol.CodeNotFound, "no %s %s", t.name, key)
	}
	return v, err
}

func (t table[T]) put(tx Tx, key string, v T) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s record %s: %w", t.name, key, err)
	}
	return tx.Put(t.name, key, b)
}

func (t table[T]) delete(tx Tx, key string) error { return tx.Delete(t.name, key) }

func (t table[T]) all(tx Tx) ([]T, error) {
	var out []T
	err := tx.Each(t.name, func(key string, b []byte) error {
		var v T
		if err := json.Unmarshal(b, &v); err != nil {
			return fmt.Errorf("decode %s record %s: %w", t.name, key, err)
		}
		out = append(out, v)
		return nil
	})
	return out, err
}

// change rewrites one record that must be there.
func (t table[T]) change(tx Tx, key string, f func(*T) error) error {
	v, err := t.need(tx, key)
	if err != nil {
		return err
	}
	if err := f(&v); err != nil {
		return err
	}
	return t.put(tx, key, v)
}

func resultKey(b protocol.BranchID, index int) string { return fmt.Sprintf("%s/%06d", b, index) }
