package protocol

// The local protocol: between a guest program and agentd, over the unix
// socket GuestSocket. Frames are like those of a control stream but may be up
// to MaxMessage long. One connection serves one call: the program sends a
// LocalRequest and reads one LocalReply (LocalEvents: one after another).
// Closing the connection gives the call up.

// LocalRequest is one call of a guest program.
type LocalRequest struct {
	Version   int      `msgpack:"version"`
	Kind      CallKind `msgpack:"kind"` // a CallKind, or one of the Local kinds
	Arguments []byte   `msgpack:"arguments"`
	// Watch is the process whose end ends a child timeline made by this
	// call; 0 is the process at the other end of the socket.
	Watch int `msgpack:"watch,omitempty"`
}

// Kinds that agentd answers itself.
const (
	// LocalEvents: one reply with a ResumeEvent at once (the newest, Count 0 if none) and after every thaw.
	LocalEvents CallKind = "events"
)

// LocalReply is agentd's answer.
type LocalReply struct {
	Error *Error `msgpack:"error,omitempty"`
	Value []byte `msgpack:"value,omitempty"`
	// Resume is set when the call came back after a freeze in which the
	// machine got a new identity or time: helpers reseed before returning.
	Resume *ResumeEvent `msgpack:"resume,omitempty"`
}

// ResumeEvent tells on_resume callbacks what happened.
type ResumeEvent struct {
	Reason   ResumeReason `msgpack:"reason"`
	Timeline TimelineID   `msgpack:"timeline"`
	Node     string       `msgpack:"node"`
	Slept    int64        `msgpack:"slept"` // nanoseconds
	// Entropy is 32 fresh bytes; each reader gets others.
	Entropy []byte `msgpack:"entropy"`
	// Seed is not empty in deterministic mode.
	Seed []byte `msgpack:"seed,omitempty"`
	// Count grows by one with every thaw.
	Count uint64 `msgpack:"count"`
	// Lost names what did not come along (a link, a workspace).
	Lost []string `msgpack:"lost,omitempty"`
}
