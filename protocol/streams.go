package protocol

// Streams of the bulk connection. The end that opens one sends Open as its
// first frame; what follows depends on the operation. Every frame is an Exec*
// or File* struct, encoded as a map.
type Open struct {
	// Op is OpMessage, OpExec or OpFiles.
	Op   string       `msgpack:"op"`
	Exec *ExecOpen    `msgpack:"exec,omitempty"`
	File *FileRequest `msgpack:"file,omitempty"`
	// Message numbers the long messages of one direction of a link, from 1.
	Message uint64 `msgpack:"message,omitempty"`
}

// Operations of Open.
const (
	OpMessage = "message" // data frames with pieces of one long message, then end of stream
	OpExec    = "exec"
	OpFiles   = "files"
)

// Piece is one part of a message that is too long for a control frame.
type Piece struct {
	Data []byte `msgpack:"data"`
	Last bool   `msgpack:"last"`
}

// ExecSpec says what to run.
type ExecSpec struct {
	Argv []string          `msgpack:"argv"`
	Env  map[string]string `msgpack:"env,omitempty"` // added to the image's
	Dir  string            `msgpack:"dir,omitempty"` // "" is /workspace
	User string            `msgpack:"user,omitempty"`
	// TTY gives the program a terminal of Rows x Columns; its output is all
	// on stdout then.
	TTY     bool   `msgpack:"tty,omitempty"`
	Rows    uint16 `msgpack:"rows,omitempty"`
	Columns uint16 `msgpack:"columns,omitempty"`
	// Stdin: the host will send input; else it is at its end at once.
	Stdin   bool  `msgpack:"stdin,omitempty"`
	Timeout int64 `msgpack:"timeout,omitempty"` // nanoseconds; kills the whole cgroup
}

// ExecOpen starts a program, or attaches to one by id and offsets. Start is
// nil for an attach. Starting an id that exists attaches to it, so a start
// whose answer was lost can be repeated.
type ExecOpen struct {
	ID     ExecID    `msgpack:"id"`
	Start  *ExecSpec `msgpack:"start,omitempty"`
	Stdout uint64    `msgpack:"stdout"` // offsets of the first byte wanted
	Stderr uint64    `msgpack:"stderr"`
}

// ExecFrame is any frame of an exec stream after Open; exactly one field is set.
type ExecFrame struct {
	// From the guest.
	Started *ExecStarted `msgpack:"started,omitempty"`
	Output  *ExecOutput  `msgpack:"output,omitempty"`
	Taken   *uint64      `msgpack:"taken,omitempty"` // input offset handed to the program so far
	Exit    *ExecExit    `msgpack:"exit,omitempty"`
	Error   *Error       `msgpack:"error,omitempty"`
	// From the host.
	Input  *ExecInput  `msgpack:"input,omitempty"`
	Ack    *ExecAck    `msgpack:"ack,omitempty"` // output before these offsets may be dropped
	Signal string      `msgpack:"signal,omitempty"`
	Resize *ExecResize `msgpack:"resize,omitempty"`
}

// Parts of ExecFrame.
type (
	ExecStarted struct {
		PID   int    `msgpack:"pid"`
		Stdin uint64 `msgpack:"stdin"` // input offset taken so far
	}
	ExecOutput struct {
		Stream string `msgpack:"stream"` // stdout, stderr
		Offset uint64 `msgpack:"offset"`
		Data   []byte `msgpack:"data"`
	}
	ExecInput struct {
		Offset uint64 `msgpack:"offset"`
		Data   []byte `msgpack:"data"`
		End    bool   `msgpack:"end"`
	}
	ExecAck struct {
		Stdout uint64 `msgpack:"stdout"`
		Stderr uint64 `msgpack:"stderr"`
	}
	ExecResize struct {
		Rows    uint16 `msgpack:"rows"`
		Columns uint16 `msgpack:"columns"`
	}
	// ExecExit comes after all output was sent.
	ExecExit struct {
		Status   ExitStatus `msgpack:"status"`
		TimedOut bool       `msgpack:"timed_out,omitempty"`
		Stdout   uint64     `msgpack:"stdout"` // total lengths
		Stderr   uint64     `msgpack:"stderr"`
	}
	// ExecOffsets says how much output of a running program exists, and how
	// much of its input it has consumed: read from the pipe, or been given on
	// a terminal.
	ExecOffsets struct {
		ID     ExecID `msgpack:"id" json:"id"`
		Stdout uint64 `msgpack:"stdout" json:"stdout"`
		Stderr uint64 `msgpack:"stderr" json:"stderr"`
		Stdin  uint64 `msgpack:"stdin,omitempty" json:"stdin,omitempty"`
	}
)

// FileRequest is one operation on the guest's files. Path is absolute.
type FileRequest struct {
	Op    string `msgpack:"op"` // put, get, list, stat, remove, mkdir, tar-in, tar-out
	Path  string `msgpack:"path"`
	Mode  uint32 `msgpack:"mode,omitempty"`
	UID   int    `msgpack:"uid,omitempty"`
	GID   int    `msgpack:"gid,omitempty"`
	Whole bool   `msgpack:"whole,omitempty"` // remove: with everything below; mkdir: with parents
}

// FileFrame is any frame of a files stream after Open: pieces of content in
// either direction, and at the end one Done from the guest.
type FileFrame struct {
	Data    []byte      `msgpack:"data,omitempty"`
	End     bool        `msgpack:"end,omitempty"` // no more data in this direction
	Done    bool        `msgpack:"done,omitempty"`
	Error   *Error      `msgpack:"error,omitempty"`
	Entries []FileEntry `msgpack:"entries,omitempty"` // list (many), stat (one)
}

// FileEntry describes one file.
type FileEntry struct {
	Name   string `msgpack:"name" json:"name"`
	Mode   uint32 `msgpack:"mode" json:"mode"` // as st_mode
	Size   int64  `msgpack:"size" json:"size"`
	MTime  int64  `msgpack:"mtime" json:"mtime"` // Unix nanoseconds
	UID    int    `msgpack:"uid" json:"uid"`
	GID    int    `msgpack:"gid" json:"gid"`
	Target string `msgpack:"target,omitempty" json:"target,omitempty"` // of a symbolic link
}
