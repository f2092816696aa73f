// Package exec runs programs in the guest for the host.
//
//	m := exec.New(exec.Config{CgroupRoot: "/sys/fs/cgroup/user", Log: log})
//	defer m.Close()
//	m.Serve(ctx, open, stream)  // one call per exec stream of a link
//
//	err := m.Quiesce(ctx)       // before the user cgroup is frozen
//	m.Pump(ctx)                 // after it is
//	offsets := m.Offsets()      // exact until Resume
//	m.CloseInputs()             // in a new line only
//	m.Advance(replaced)         // in place of a timeline only
//	m.Resume()                  // before the user cgroup is thawed or after
//
// A program is started by the first stream that names its id and goes on when
// the stream ends; a later stream attaches to it by id and offsets. Of several
// attached streams the newest wins, the older one ends with CodeCancelled. An
// Error frame is always the last frame of its stream and never touches a
// program that runs.
//
// # Output
//
// Each output stream has a bounded ring. A byte leaves the ring only when the
// host has acknowledged it; while the ring is full nothing is read, so that
// the pipe fills and the program blocks; a host that attaches again should first
// acknowledge what it has. Rings grow with use out of one budget
// for all programs; when that is used up they stay small. A last part of
// standard error (on a terminal: of the output) outlives acknowledgement.
//
// The Exit frame comes when the main process has ended and its output is
// complete: all pipes at their end, or, where a lingering descendant keeps one
// open, all that was in the pipe a short grace after the end. The lengths in
// Exit are final. What such a descendant writes later is read and thrown away,
// so that it neither blocks nor dies of a broken pipe.
//
// The newest 64 ended programs are remembered with status and unacknowledged
// output, those that the host has acknowledged going first, so that a start
// whose answer was lost can be repeated without running twice.
//
// # Input
//
// Input is addressed by offset. Taken tells what was handed to the program's
// pipe or terminal; the host may send at most protocol.MaxExecInput bytes
// beyond it. Input that was received but not taken is forgotten when the
// stream ends, and is to be sent again from the offset in Started; a first
// Input beyond that offset says that the host has nothing older. Input after the
// end is not taken, nor more than the pipe holds by a program that does not read
// or closed its standard input.
//
// What was taken from the pipe by the program is consumed; of a terminal's, all
// that was handed to it. Offsets are the line's: Advance moves a copy to where
// the timeline it replaces was, so that consumed input is not given again and
// the rest of it is. A terminal's line that was not read at a snapshot is read
// again.
//
// # Snapshots
//
// Everything is memory, pipes and CLOCK_MONOTONIC timers (Go's timers), so a
// copy of the machine goes on with the same Manager; time-outs do not count
// the time a machine was stored. Between Quiesce and Resume no program is
// started, no time-out fires, and only Pump moves bytes.
//
// # Kill
//
// Programs have a session each, and with CgroupRoot a cgroup each, into which
// they are born: a time-out kills all in it, whatever sessions they made.
// Without CgroupRoot only the process group is killed.
//
// # Concurrency and failure
//
// All methods may be called from any goroutine. Manager.mu is taken before
// program.mu; files are closed with neither held, because Close waits for
// callbacks that take program.mu. The package reaps only its own children: the
// process must not wait for any child (-1) elsewhere, nor ignore signals,
// which programs would inherit. While a program is started the runtime stands
// still until its execve has read the binary, so the file system that holds it
// must not depend on this process.
package exec
