package protocol

// Message is one of the control messages below. On the wire a message is the
// two-element array [type, body]; body is a map with the msgpack names.
type Message interface {
	// Type is the name of the message on the wire.
	Type() string
}

// State is what a guest says of itself in hello.
type State string

// The states of a guest. A loaded copy starts in StateQuiesced.
const (
	StateRunning   State = "running"
	StatePreparing State = "preparing"
	StateQuiesced  State = "quiesced"
	// StateLost: the worker died while the user processes were frozen.
	StateLost State = "lost"
)

// Messages of the host.
type (
	// Prepare asks the guest to quiesce for freeze F. Key is zero when an
	// operator asks.
	Prepare struct {
		Freeze Freeze `msgpack:"freeze"`
		Key    Key    `msgpack:"key"`
	}
	// AckPosition says that the log up to X is on the host; only after it
	// may the guest go from preparing to quiesced.
	AckPosition struct {
		Freeze   Freeze   `msgpack:"freeze"`
		Position Position `msgpack:"position"`
	}
	// Abort ends the preparing of freeze F; ignored when quiesced.
	Abort struct {
		Freeze Freeze `msgpack:"freeze"`
		Error  *Error `msgpack:"error"`
	}
	// Thaw is the only thing that ends the freeze it names.
	Thaw struct {
		Freeze      Freeze     `msgpack:"freeze"`
		Timeline    TimelineID `msgpack:"timeline"`
		Incarnation uint64     `msgpack:"incarnation"`
		// Key names the pending call that Outcome answers; zero for none.
		// A nil Outcome means the call stays pending.
		Key     Key      `msgpack:"key"`
		Outcome *Outcome `msgpack:"outcome"`
		Stream  StreamID `msgpack:"stream"`
		Epoch   uint64   `msgpack:"epoch"`
		// Next is the next sequence of the stream.
		Next     uint64   `msgpack:"next"`
		Time     int64    `msgpack:"time"`  // Unix nanoseconds when the guest's clock showed Clock
		Clock    int64    `msgpack:"clock"` // see Hello
		Entropy  []byte   `msgpack:"entropy"`
		Identity Identity `msgpack:"identity"`
		// Reason is what on_resume callbacks are told.
		Reason ResumeReason `msgpack:"reason"`
		// Slept is how long the machine did not run, in nanoseconds.
		Slept int64 `msgpack:"slept"`
		// Execs is that of the last quiesced of the timeline which this one
		// replaces: input that its programs had consumed is not given again.
		Execs []ExecOffsets `msgpack:"execs,omitempty"`
	}
	// Outcome settles one pending call. It is also the message of that name,
	// which a guest applies only while running.
	Outcome struct {
		Key   Key    `msgpack:"key"`
		Error *Error `msgpack:"error,omitempty"`
		// Value is the result of the call: a msgpack encoding of the result
		// struct of the call's kind.
		Value []byte `msgpack:"value,omitempty"`
	}
	// Attach names stream and epoch on a new link to a running guest.
	Attach struct {
		Timeline TimelineID `msgpack:"timeline"`
		Stream   StreamID   `msgpack:"stream"`
		Epoch    uint64     `msgpack:"epoch"`
		Next     uint64     `msgpack:"next"`
		Time     int64      `msgpack:"time"`  // Unix nanoseconds when the guest's clock showed Clock
		Clock    int64      `msgpack:"clock"` // see Hello
	}
	// Ping is answered by Pong with the same number; liveness of a link.
	Ping struct {
		N uint64 `msgpack:"n"`
	}
)

// Messages of the guest.
type (
	// Hello is the first message on each link.
	Hello struct {
		Version  int        `msgpack:"version"`
		Release  string     `msgpack:"release"`
		Timeline TimelineID `msgpack:"timeline"`
		// Start is the number that PID 1 gave this worker.
		Start   uint64        `msgpack:"start"`
		State   State         `msgpack:"state"`
		Freeze  Freeze        `msgpack:"freeze"` // newest seen
		Pending []PendingCall `msgpack:"pending"`
		// Clock is the guest's monotonic clock in nanoseconds.
		Clock int64 `msgpack:"clock"`
	}
	// PendingCall is one entry of the guest's table of unanswered calls.
	PendingCall struct {
		Key  Key      `msgpack:"key"`
		Kind CallKind `msgpack:"kind"`
	}
	// Call carries a guest program's call to the host. Arguments is the
	// msgpack encoding of the argument struct of the kind.
	Call struct {
		Key       Key      `msgpack:"key"`
		Kind      CallKind `msgpack:"kind"`
		Arguments []byte   `msgpack:"arguments"`
	}
	// CallGone says that the caller went away before its outcome.
	CallGone struct {
		Key Key `msgpack:"key"`
	}
	// Drained says that the user processes are frozen and everything up to
	// Position has been sent.
	Drained struct {
		Freeze   Freeze   `msgpack:"freeze"`
		Position Position `msgpack:"position"`
	}
	// Quiesced is the last message before the end record.
	Quiesced struct {
		Freeze   Freeze   `msgpack:"freeze"`
		Position Position `msgpack:"position"`
		// Execs says how far each running program had come; at most MaxExecs.
		Execs []ExecOffsets `msgpack:"execs"`
	}
	// PrepareFailed says that the guest runs on.
	PrepareFailed struct {
		Freeze Freeze `msgpack:"freeze"`
		Error  *Error `msgpack:"error"`
	}
	// Thawed acknowledges Thaw.
	Thawed struct {
		Freeze   Freeze     `msgpack:"freeze"`
		Timeline TimelineID `msgpack:"timeline"`
	}
	// OutcomeAck acknowledges Outcome, applied or not.
	OutcomeAck struct {
		Key Key `msgpack:"key"`
	}
	// Attached acknowledges Attach.
	Attached struct {
		Epoch uint64 `msgpack:"epoch"`
	}
	// CallerExited says that the program whose call made this timeline (or
	// came back in it by a restore) has ended without finish.
	CallerExited struct {
		Key    Key        `msgpack:"key"`
		Status ExitStatus `msgpack:"status"`
		Stderr []byte     `msgpack:"stderr"` // at most MaxStderrTail
	}
	// Pong answers Ping.
	Pong struct {
		N     uint64 `msgpack:"n"`
		Clock int64  `msgpack:"clock"` // as in Hello, between the two messages
	}
)

// Long is sent by either end and never seen above the link: the message with
// number N, which came in pieces on the bulk connection, takes its place in
// the order of messages here.
type Long struct {
	N uint64 `msgpack:"n"`
}

// Identity is what a line is called from inside.
type Identity struct {
	Sandbox   SandboxID `msgpack:"sandbox"`
	Node      string    `msgpack:"node"`       // index path, "0" for the first line, "0.2.1"
	Hostname  string    `msgpack:"hostname"`   //
	MachineID string    `msgpack:"machine_id"` // 32 hex digits
	// NewLine: standard input is at its end here, and the outputs of running
	// programs belong to this line from now on.
	NewLine bool `msgpack:"new_line"`
	// Seed is not empty in deterministic mode: H(episode seed, node, index).
	Seed []byte `msgpack:"seed,omitempty"`
	// Env is added by a branch for its children; helpers see it in whoami.
	Env map[string]string `msgpack:"env,omitempty"`
}

// ResumeReason says why a machine went on after a stop.
type ResumeReason string

// The reasons.
const (
	ReasonStart    ResumeReason = "start"
	ReasonSnapshot ResumeReason = "snapshot"
	ReasonBranch   ResumeReason = "branch"
	ReasonRestore  ResumeReason = "restore"
	ReasonWake     ResumeReason = "wake"
)

// ExitStatus is how a process ended.
type ExitStatus struct {
	Code   int    `msgpack:"code" json:"code"`                         // 0-255; -1 when unknown or by a signal
	Signal string `msgpack:"signal,omitempty" json:"signal,omitempty"` // "SIGKILL" and so on
}

// Shell is the status as a shell reports it.
func (s ExitStatus) Shell(signo int) int {
	if s.Signal != "" {
		return 128 + signo
	}
	if s.Code < 0 {
		return 255
	}
	return s.Code
}

// Types lists every message, by its name on the wire.
func Types() map[string]func() Message {
	return map[string]func() Message{
		"prepare":        func() Message { return new(Prepare) },
		"ack-position":   func() Message { return new(AckPosition) },
		"abort":          func() Message { return new(Abort) },
		"thaw":           func() Message { return new(Thaw) },
		"outcome":        func() Message { return new(Outcome) },
		"attach":         func() Message { return new(Attach) },
		"ping":           func() Message { return new(Ping) },
		"hello":          func() Message { return new(Hello) },
		"call":           func() Message { return new(Call) },
		"call-gone":      func() Message { return new(CallGone) },
		"drained":        func() Message { return new(Drained) },
		"quiesced":       func() Message { return new(Quiesced) },
		"prepare-failed": func() Message { return new(PrepareFailed) },
		"thawed":         func() Message { return new(Thawed) },
		"outcome-ack":    func() Message { return new(OutcomeAck) },
		"attached":       func() Message { return new(Attached) },
		"caller-exited":  func() Message { return new(CallerExited) },
		"pong":           func() Message { return new(Pong) },
		"long":           func() Message { return new(Long) },
	}
}

func (*Prepare) Type() string       { return "prepare" }
func (*AckPosition) Type() string   { return "ack-position" }
func (*Abort) Type() string         { return "abort" }
func (*Thaw) Type() string          { return "thaw" }
func (*Outcome) Type() string       { return "outcome" }
func (*Attach) Type() string        { return "attach" }
func (*Ping) Type() string          { return "ping" }
func (*Hello) Type() string         { return "hello" }
func (*Call) Type() string          { return "call" }
func (*CallGone) Type() string      { return "call-gone" }
func (*Drained) Type() string       { return "drained" }
func (*Quiesced) Type() string      { return "quiesced" }
func (*PrepareFailed) Type() string { return "prepare-failed" }
func (*Thawed) Type() string        { return "thawed" }
func (*OutcomeAck) Type() string    { return "outcome-ack" }
func (*Attached) Type() string      { return "attached" }
func (*CallerExited) Type() string  { return "caller-exited" }
func (*Pong) Type() string          { return "pong" }
func (*Long) Type() string          { return "long" }
