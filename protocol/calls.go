package protocol

// CallKind names what a guest program asks of its host.
type CallKind string

// The calls. "results", "cancel" and "discard" are what a branch handle's
// methods send.
const (
	CallSnapshot CallKind = "snapshot"
	CallRestore  CallKind = "restore"
	CallBranch   CallKind = "branch"
	CallFinish   CallKind = "finish"
	CallAdopt    CallKind = "adopt"
	CallResults  CallKind = "results"
	CallCancel   CallKind = "cancel"
	CallDiscard  CallKind = "discard"
	CallLLM      CallKind = "llm_query"
	CallTree     CallKind = "tree"
	CallWhoami   CallKind = "whoami"
	CallBudget   CallKind = "budget"
	CallSync     CallKind = "sync"
)

// Payloads, results and env values are chosen by guest programs. A payload is
// the msgpack encoding of any value; hosts carry it unread.
type (
	// SnapshotArgs: snapshot(label, durable).
	SnapshotArgs struct {
		Label   string `msgpack:"label,omitempty"`
		Durable bool   `msgpack:"durable,omitempty"`
	}
	// SnapshotResult is what snapshot() returns, here and in each timeline
	// restored from or branched at the checkpoint. A pending restore() or
	// finish() that comes back gets it too, with Restored set.
	SnapshotResult struct {
		ID       CheckpointID `msgpack:"id"`
		Restored bool         `msgpack:"restored"`
		Index    *int         `msgpack:"index"` // set in children of branch(at=ID)
		Branch   BranchID     `msgpack:"branch,omitempty"`
		Payload  []byte       `msgpack:"payload,omitempty"`
	}

	// RestoreArgs: restore(id, payload, keep_present=True, detach=False).
	RestoreArgs struct {
		ID      CheckpointID `msgpack:"id"`
		Payload []byte       `msgpack:"payload,omitempty"`
		// DropPresent: do not keep a checkpoint of the replaced present.
		DropPresent bool `msgpack:"drop_present,omitempty"`
		// Detach leaves the replaced timeline's descendants running, each
		// without a branch slot, instead of ending them.
		Detach bool `msgpack:"detach,omitempty"`
	}

	// BranchArgs: branch(n, payloads, max_live, at, env, labels, timeout, min_ok).
	BranchArgs struct {
		N        int                 `msgpack:"n"`
		Payloads [][]byte            `msgpack:"payloads,omitempty"` // none, or one per child
		MaxLive  int                 `msgpack:"max_live,omitempty"` // 0: all at once
		At       CheckpointID        `msgpack:"at,omitempty"`       // empty: here
		Env      []map[string]string `msgpack:"env,omitempty"`      // none, or one per child
		Labels   []string            `msgpack:"labels,omitempty"`   // none, or one per child
		Timeout  int64               `msgpack:"timeout,omitempty"`  // of each child, nanoseconds; 0: none
		MinOK    int                 `msgpack:"min_ok,omitempty"`   // 0: all
	}
	// BranchResult is what branch() returns: Index nil in the parent, the
	// child's number in a child.
	BranchResult struct {
		ID         BranchID     `msgpack:"id"`
		Checkpoint CheckpointID `msgpack:"checkpoint"`
		Index      *int         `msgpack:"index"`
		N          int          `msgpack:"n"`
		Payload    []byte       `msgpack:"payload,omitempty"`
	}

	// ResultsArgs: wait until a child that is not in Have has a result.
	ResultsArgs struct {
		Branch  BranchID `msgpack:"branch"`
		Have    []int    `msgpack:"have"`
		Timeout int64    `msgpack:"timeout,omitempty"` // nanoseconds; 0: no limit; negative: do not wait
	}
	// ChildResult is how one child ended.
	ChildResult struct {
		Index      int          `msgpack:"index" json:"index"`
		Result     []byte       `msgpack:"result,omitempty" json:"-"`
		Error      *Error       `msgpack:"error,omitempty" json:"error,omitempty"`
		Checkpoint CheckpointID `msgpack:"checkpoint,omitempty" json:"checkpoint,omitempty"` // with finish(keep=True)
	}
	// ResultsResult holds what came in; empty when the timeout passed.
	ResultsResult struct {
		Results []ChildResult `msgpack:"results"`
	}

	// FinishArgs: finish(result, keep=False). Without keep it never returns.
	FinishArgs struct {
		Result []byte `msgpack:"result,omitempty"`
		Keep   bool   `msgpack:"keep,omitempty"`
	}
	// AdoptArgs: adopt(i) by the branch's parent.
	AdoptArgs struct {
		Branch  BranchID `msgpack:"branch"`
		Index   int      `msgpack:"index"`
		Payload []byte   `msgpack:"payload,omitempty"`
	}
	// CancelArgs: cancel(i): the child ends with CodeCancelled.
	CancelArgs struct {
		Branch BranchID `msgpack:"branch"`
		Index  int      `msgpack:"index"`
	}
	// DiscardArgs: forget the kept checkpoints of a branch's results.
	DiscardArgs struct {
		Branch BranchID `msgpack:"branch"`
	}

	// LLMArgs: llm_query and llm_query_batched.
	LLMArgs struct {
		Prompts []string `msgpack:"prompts"`
		Model   string   `msgpack:"model,omitempty"`
	}
	// LLMResult: one completion per prompt, in order.
	LLMResult struct {
		Completions []Completion `msgpack:"completions"`
	}
	// Completion is one model answer or its failure.
	Completion struct {
		Text             string `msgpack:"text"`
		Error            *Error `msgpack:"error,omitempty"`
		PromptTokens     int64  `msgpack:"prompt_tokens"`
		CompletionTokens int64  `msgpack:"completion_tokens"`
	}

	// TreeResult is the sandbox's tree.
	TreeResult struct {
		Sandbox     SandboxID        `msgpack:"sandbox" json:"sandbox"`
		State       string           `msgpack:"state" json:"state"`
		Timelines   []TreeTimeline   `msgpack:"timelines" json:"timelines"`
		Checkpoints []TreeCheckpoint `msgpack:"checkpoints" json:"checkpoints"`
	}
	// TreeTimeline is one timeline, oldest first.
	TreeTimeline struct {
		ID     TimelineID   `msgpack:"id" json:"id"`
		Line   LineID       `msgpack:"line" json:"line"`
		Node   string       `msgpack:"node" json:"node"`
		Origin CheckpointID `msgpack:"origin,omitempty" json:"origin,omitempty"`
		State  string       `msgpack:"state" json:"state"` // live, hibernated, stopped, ended
		Reason string       `msgpack:"reason,omitempty" json:"reason,omitempty"`
		Label  string       `msgpack:"label,omitempty" json:"label,omitempty"`
	}
	// TreeCheckpoint is one published checkpoint, oldest first.
	TreeCheckpoint struct {
		ID       CheckpointID `msgpack:"id" json:"id"`
		Timeline TimelineID   `msgpack:"timeline" json:"timeline"`
		Label    string       `msgpack:"label,omitempty" json:"label,omitempty"`
		Class    string       `msgpack:"class" json:"class"` // named, pinned, auto, internal
		Durable  bool         `msgpack:"durable" json:"durable"`
		Created  int64        `msgpack:"created" json:"created"` // Unix nanoseconds
		Bytes    int64        `msgpack:"bytes" json:"bytes"`
	}

	// WhoamiResult says which timeline this is.
	WhoamiResult struct {
		Sandbox  SandboxID         `msgpack:"sandbox"`
		Timeline TimelineID        `msgpack:"timeline"`
		Line     LineID            `msgpack:"line"`
		Node     string            `msgpack:"node"`
		Depth    int               `msgpack:"depth"`
		Origin   CheckpointID      `msgpack:"origin,omitempty"`
		Branch   BranchID          `msgpack:"branch,omitempty"`
		Index    *int              `msgpack:"index"`
		Label    string            `msgpack:"label,omitempty"`
		Env      map[string]string `msgpack:"env,omitempty"`
	}

	// BudgetResult maps the name of a budget to its state; see Budget names.
	BudgetResult struct {
		Budgets map[string]Budget `msgpack:"budgets"`
	}
	// Budget is one limit as this timeline sees it. Limit -1: no limit.
	Budget struct {
		Limit int64 `msgpack:"limit" json:"limit"`
		Used  int64 `msgpack:"used" json:"used"`
	}

	// SyncResult: everything before the call is on stable storage.
	SyncResult struct {
		Position Position `msgpack:"position"`
	}
)

// Names of budgets.
const (
	BudgetDepth     = "depth"      // branches of branches
	BudgetWidth     = "width"      // children of one branch
	BudgetLive      = "live"       // running VMs of the sandbox
	BudgetMemory    = "memory"     // bytes of guest RAM of the live VMs
	BudgetDisk      = "disk"       // bytes of checkpoints
	BudgetLLMCalls  = "llm_calls"  // prompts sent to the model
	BudgetLLMTokens = "llm_tokens" // prompt and completion tokens
	BudgetLLMCost   = "llm_cost"   // millionths of a US dollar
)
