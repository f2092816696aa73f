package protocol

import "time"

// Limits of what one end accepts from the other. Sizes are in bytes.
const (
	// MaxControlFrame is the longest msgpack body of a frame on a control stream.
	MaxControlFrame = 1 << 20
	// MaxDataFrame is the longest msgpack body of a frame on any other stream.
	MaxDataFrame = 4 << 20
	// MaxMessage is the longest encoded message, also when it travels in
	// pieces on the bulk connection because it is over MaxControlFrame.
	MaxMessage = 64 << 20
	// MaxDepth is the deepest nesting of arrays and maps in a frame.
	MaxDepth = 32
	// MaxPayload is the longest payload, result or prompt of one call.
	MaxPayload = 16 << 20
	// MaxPendingCalls is how many calls one timeline may have pending.
	MaxPendingCalls = 256
	// MaxStreams is how many streams one connection of a link may have open.
	MaxStreams = 256
	// MaxLabel is the longest label of a checkpoint.
	MaxLabel = 256
	// MaxBranch is the largest n of one branch.
	MaxBranch = 1024
	// MaxBatch is how many prompts one llm_query_batched may hold.
	MaxBatch = 1024
	// MaxStderrTail is how much of a caller's standard error is kept for the
	// result of a child that exits without finish.
	MaxStderrTail = 4096
	// MaxExecInput is how much input of a program the host may send beyond
	// what the guest has said was taken.
	MaxExecInput = 1 << 20
	// MaxExecUnread is how much input that was taken the host keeps, to give it
	// again where it was not consumed: as much as a pipe holds.
	MaxExecUnread = 64 << 10
	// MaxExecs is how many programs quiesced may list.
	MaxExecs = 1024
)

// VSOCK ports on which agentd listens for the two connections of a link.
const (
	PortControl = 1024
	PortBulk    = 1025
)

// Names of the virtio-serial ports that carry the two connections of a link.
const (
	SerialControl = "ratoon.control"
	SerialBulk    = "ratoon.bulk"
)

// Paths inside the guest.
const (
	GuestSocket    = "/run/ratoon/agent.sock"
	GuestWorkspace = "/workspace"
)

// PrepareDeadline is how long a guest may take from prepare to quiesced before
// it unfreezes by itself and fails the call.
const PrepareDeadline = 20 * time.Second
