package sandbox

import (
	"context"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Class says how long a checkpoint lives.
type Class string

// The classes.
const (
	ClassNamed    Class = "named"    // asked for: until it is removed
	ClassPinned   Class = "pinned"   // kept by an operator: until it is unpinned and removed
	ClassAuto     Class = "auto"     // kept presents: the newest few of a sandbox
	ClassInternal Class = "internal" // while an operation or a result refers to it
)

// Checkpoint is what the coordinator knows of one published checkpoint.
type Checkpoint struct {
	ID       protocol.CheckpointID
	Class    Class
	Label    string
	Created  time.Time
	Sandbox  protocol.SandboxID
	Timeline protocol.TimelineID
	Line     protocol.LineID
	Node     string
	Parent   protocol.CheckpointID // origin of its timeline
	// Freeze, Key and Kind say in which call the guest waits; Key is zero
	// when an operator made it.
	Freeze        protocol.Freeze
	Key           protocol.Key
	Kind          protocol.CallKind
	DurableWanted bool
	Durable       bool
	Position      protocol.Position
	Execs         []protocol.ExecOffsets
	// Bytes is its size on disk; the store fills it in.
	Bytes int64
}

// VM is one virtual machine, owned by the operation that loaded it and then
// by its timeline.
type VM interface {
	// ID is the id in the machine's VMRecord.
	ID() protocol.VMID
	// PID and StartTime identify the process (field 22 of /proc/PID/stat).
	PID() int
	StartTime() uint64
	// Connect makes a new link, ending the one before.
	Connect(ctx context.Context) (Link, error)
	// Pause stops the machine. Until Resume nobody may write to its links
	// or close them.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Done is closed when the process has ended; Err then says how.
	Done() <-chan struct{}
	Err() error
	// Kill ends the process, waits for it and removes what it had on the
	// host. Idempotent.
	Kill() error
}

// Link is one connection to a guest. *link.Link implements it.
type Link interface {
	Send(context.Context, protocol.Message) error
	Receive(context.Context) (protocol.Message, error)
	// AwaitEnd reads through to the end record of both connections.
	AwaitEnd(context.Context) error
	Done() <-chan struct{}
	Close() error
}

// LoadRequest says which VM to load.
type LoadRequest struct {
	VM         protocol.VMID
	Checkpoint protocol.CheckpointID
	// Siblings is how many VMs are about to be loaded from the checkpoint,
	// this one included: a hint for choosing between copying its pages into
	// each and making a new base first.
	Siblings int
	// Rebase asks for a new base whatever Siblings says.
	Rebase bool
}

// Machines loads VMs and cleans up after those of an earlier process.
type Machines interface {
	// Load starts a VM from a checkpoint and un-pauses it; its guest is
	// quiesced with the checkpoint's freeze. On an error nothing is left.
	Load(context.Context, LoadRequest) (VM, error)
	// Adopt finds the process of a record of an earlier daemon; it is nil
	// when there is none.
	Adopt(context.Context, VMRecord) (VM, error)
	// Sweep kills the process of a record, if any, and removes what it had.
	Sweep(context.Context, VMRecord) error
}

// Capture is a checkpoint in a temporary directory: not one yet.
type Capture interface {
	// Bytes is how much memory was copied.
	Bytes() int64
	// Publish completes it and renames it into place.
	Publish(context.Context) (Checkpoint, error)
	// Discard removes it. Idempotent, and without effect after Publish.
	Discard()
}

// Checkpoints is the store.
type Checkpoints interface {
	// Capture copies device state and written pages of a paused VM into a
	// temporary directory.
	Capture(context.Context, VM, Checkpoint) (Capture, error)
	// Durable makes a published checkpoint survive a crash of the host.
	Durable(context.Context, protocol.CheckpointID) error
	// Get answers CodeUnknownCheckpoint, CodeCheckpointLost or, when it
	// cannot be loaded here, CodeCheckpointRefused.
	Get(context.Context, protocol.CheckpointID) (Checkpoint, error)
	// Check reads the whole checkpoint and compares its checksums.
	Check(context.Context, protocol.CheckpointID) error
	SetClass(context.Context, protocol.CheckpointID, Class) error
	Remove(context.Context, protocol.CheckpointID) error
	// List holds published checkpoints of the sandbox, oldest first.
	List(context.Context) ([]Checkpoint, error)
	// Sweep removes what never became a checkpoint.
	Sweep(context.Context) error
	// Room answers CodeDiskFull when a capture of a VM may not fit.
	Room(context.Context) error
}

// DiskUser is a store that knows what a sandbox takes on disk, in bytes, better
// than its checkpoints' sizes say: what they share counts once.
type DiskUser interface {
	DiskUsed(context.Context) (int64, error)
}

// Tx is one journal transaction. Reads see its own writes.
type Tx interface {
	Get(table, key string) []byte // nil: absent
	Put(table, key string, value []byte) error
	Delete(table, key string) error
	// Each calls f in the order of keys; f must not change the table.
	Each(table string, f func(key string, value []byte) error) error
}

// Journal is the durable state. Update returns after its fsync; an error of f
// is returned as it is and nothing was written; any other error leaves open
// whether the transaction is on disk.
type Journal interface {
	Update(label string, f func(Tx) error) error
	View(f func(Tx) error) error
}

// Models answers llm_query.
type Models interface {
	Complete(context.Context, protocol.LLMArgs, Usage) (protocol.LLMResult, error)
}

// Usage is the ledger as a model call sees it.
type Usage interface {
	// Reserve counts prompts before they are sent.
	Reserve(prompts int) error
	// Settle records what one answered prompt took.
	Settle(tokens, microUSD int64) error
}

// EventKind names an Event.
type EventKind string

// The events.
const (
	EventTimelineStarted EventKind = "timeline-started" // a line's first, or its replacement
	EventTimelineEnded   EventKind = "timeline-ended"
	EventCheckpoint      EventKind = "checkpoint"
	EventSandboxEnded    EventKind = "sandbox-ended"
	EventJournalUnclear  EventKind = "journal-unclear"
)

// Event tells an observer what happened, after it was committed.
type Event struct {
	Kind       EventKind
	Timeline   protocol.TimelineID
	Line       protocol.LineID
	Node       string
	Replaces   protocol.TimelineID // the line's timeline before, for timeline-started by a restore
	Checkpoint protocol.CheckpointID
	// Of timeline-started: which timeline made the checkpoint, and how far
	// the output of its programs was.
	Maker protocol.TimelineID
	Execs []protocol.ExecOffsets
	Error *protocol.Error // why, for ends
}
