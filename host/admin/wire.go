package admin

import (
	"time"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// The bodies of requests and answers, as openapi.yaml has them.
type (
	// Version is the answer of GET /v1/version.
	Version struct {
		Release  string `json:"release"`
		API      int    `json:"api"`
		Protocol int    `json:"protocol"`
	}
	// CreateSandbox is the body of POST /v1/sandboxes.
	CreateSandbox struct {
		Name        string                `json:"name,omitempty"`
		MemoryBytes int64                 `json:"memory_bytes,omitempty"`
		CPUs        int                   `json:"cpus,omitempty"`
		From        protocol.CheckpointID `json:"from,omitempty"`
		Limits      Limits                `json:"limits,omitzero"`
		Seed        string                `json:"seed,omitempty"`
	}
	// Limits are the budgets of a sandbox; 0 is the default.
	Limits struct {
		Depth       int   `json:"depth,omitempty"`
		Width       int   `json:"width,omitempty"`
		Live        int   `json:"live,omitempty"`
		MemoryBytes int64 `json:"memory_bytes,omitempty"`
		DiskBytes   int64 `json:"disk_bytes,omitempty"`
		LLMCalls    int64 `json:"llm_calls,omitempty"`
		LLMTokens   int64 `json:"llm_tokens,omitempty"`
		LLMMicroUSD int64 `json:"llm_micro_usd,omitempty"`
	}
	// Sandboxes is the answer of GET /v1/sandboxes.
	Sandboxes struct {
		Sandboxes []daemon.Info `json:"sandboxes"`
	}
	// StartExec is the body of POST .../execs.
	StartExec struct {
		Node    string            `json:"node,omitempty"`
		Argv    []string          `json:"argv"`
		Env     map[string]string `json:"env,omitempty"`
		Dir     string            `json:"dir,omitempty"`
		User    string            `json:"user,omitempty"`
		TTY     bool              `json:"tty,omitempty"`
		Rows    uint16            `json:"rows,omitempty"`
		Columns uint16            `json:"columns,omitempty"`
		Stdin   bool              `json:"stdin,omitempty"`
		// Timeout in seconds; 0: none.
		Timeout float64 `json:"timeout,omitempty"`
	}
	// Execs is the answer of GET .../execs.
	Execs struct {
		Execs []daemon.Exec `json:"execs"`
	}
	// Signal is the body of POST .../signal.
	Signal struct {
		Signal string `json:"signal"`
	}
	// Resize is the body of POST .../resize.
	Resize struct {
		Rows    uint16 `json:"rows"`
		Columns uint16 `json:"columns"`
	}
	// OutputElement is one element of GET .../output.
	OutputElement struct {
		Output *daemon.Output `json:"output,omitempty"`
		// End is the last element: how the program ended, or that it runs on.
		End   *OutputEnd `json:"end,omitempty"`
		Error *Error     `json:"error,omitempty"`
	}
	// OutputEnd ends a stream of output.
	OutputEnd struct {
		Running bool           `json:"running"`
		Exit    *daemon.Ending `json:"exit,omitempty"`
	}
	// MakeSnapshot is the body of POST .../snapshots.
	MakeSnapshot struct {
		Node    string `json:"node,omitempty"`
		Label   string `json:"label,omitempty"`
		Durable bool   `json:"durable,omitempty"`
	}
	// Restore is the body of POST .../restore.
	Restore struct {
		Node        string                `json:"node,omitempty"`
		Checkpoint  protocol.CheckpointID `json:"checkpoint"`
		DropPresent bool                  `json:"drop_present,omitempty"`
		Detach      bool                  `json:"detach,omitempty"`
	}
	// MakeBranch is the body of POST .../branches.
	MakeBranch struct {
		N       int                   `json:"n"`
		At      protocol.CheckpointID `json:"at,omitempty"`
		MaxLive int                   `json:"max_live,omitempty"`
		MinOK   int                   `json:"min_ok,omitempty"`
		Labels  []string              `json:"labels,omitempty"`
		Timeout float64               `json:"timeout,omitempty"`
	}
	// Branch is its answer.
	Branch struct {
		ID protocol.BranchID `json:"id"`
	}
	// Checkpoint is one checkpoint.
	Checkpoint struct {
		ID          protocol.CheckpointID `json:"id"`
		Sandbox     protocol.SandboxID    `json:"sandbox"`
		Timeline    protocol.TimelineID   `json:"timeline"`
		Node        string                `json:"node"`
		Parent      protocol.CheckpointID `json:"parent,omitempty"`
		Label       string                `json:"label,omitempty"`
		Class       string                `json:"class"`
		Durable     bool                  `json:"durable"`
		Compacted   bool                  `json:"compacted"`
		Created     time.Time             `json:"created"`
		Expires     time.Time             `json:"expires,omitzero"`
		Bytes       int64                 `json:"bytes"`
		MemoryBytes int64                 `json:"memory_bytes"`
		VMM         string                `json:"vmm"`
	}
	// Checkpoints is the answer of GET /v1/checkpoints.
	Checkpoints struct {
		Checkpoints []Checkpoint `json:"checkpoints"`
	}
	// ChangeCheckpoint is the body of PATCH /v1/checkpoints/{checkpoint}; what is
	// nil stays as it is.
	ChangeCheckpoint struct {
		Pinned *bool `json:"pinned,omitempty"`
		// Expires is a time as in RFC 3339; with Lasts it does not expire.
		Expires string `json:"expires,omitempty"`
		Lasts   bool   `json:"lasts,omitempty"`
	}
	// Removed is the answer of a removal with cascade.
	Removed struct {
		Removed []protocol.CheckpointID `json:"removed"`
	}
	// Verify is the body of POST /v1/checkpoints/verify; without any, all are
	// meant.
	Verify struct {
		Checkpoints []protocol.CheckpointID `json:"checkpoints,omitempty"`
	}
	// VerifyElement is one element of its answer.
	VerifyElement struct {
		Progress *checkpoint.Progress `json:"progress,omitempty"`
		Report   *checkpoint.Report   `json:"report,omitempty"`
		End      *VerifyEnd           `json:"end,omitempty"`
		Error    *Error               `json:"error,omitempty"`
	}
	// VerifyEnd ends it.
	VerifyEnd struct {
		Checked int `json:"checked"`
		Damaged int `json:"damaged"`
	}
	// EventElement is one element of GET /v1/events.
	EventElement struct {
		Event *daemon.Event `json:"event,omitempty"`
		End   *EventEnd     `json:"end,omitempty"`
		Error *Error        `json:"error,omitempty"`
	}
	// EventEnd ends a stream of events.
	EventEnd struct {
		Cursor int64 `json:"cursor"`
	}
	// CreateElement is one element of the answer of POST /v1/sandboxes to who
	// accepts a stream.
	CreateElement struct {
		Progress string       `json:"progress,omitempty"`
		End      *daemon.Info `json:"end,omitempty"`
		Error    *Error       `json:"error,omitempty"`
	}
)

func (l Limits) limits() sandbox.Limits {
	return sandbox.Limits{Depth: l.Depth, Width: l.Width, Live: l.Live, Memory: l.MemoryBytes, Disk: l.DiskBytes,
		LLMCalls: l.LLMCalls, LLMTokens: l.LLMTokens, LLMCost: l.LLMMicroUSD}
}

func checkpointOf(m checkpoint.Manifest) Checkpoint {
	return Checkpoint{ID: m.ID, Sandbox: m.Sandbox, Timeline: m.Timeline, Node: m.Node, Parent: m.Parent, Label: m.Label, Class: string(m.Class),
		Durable: m.Durable, Compacted: m.Files.Frames != nil, Created: m.Created, Expires: m.Expires, Bytes: m.Bytes(), MemoryBytes: m.Machine.MemoryBytes,
		VMM: m.VMM.Name + " " + m.VMM.Version + " (" + m.VMM.Accel + ")"}
}
