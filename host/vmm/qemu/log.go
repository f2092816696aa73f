package qemu

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxLog bounds what QEMU may print.
const maxLog = 64 << 10

// newLog makes the file for QEMU's standard error: in memory, of a size that
// cannot change, so that it needs no reader and cannot grow. What does not fit
// is refused to QEMU, which goes on.
func newLog() (*os.File, error) {
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	f := os.NewFile(uintptr(fd), "log")
	if err = f.Truncate(maxLog); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make log: %w", err)
	}
	return f, nil
}

// logOf opens the log of an adopted process: nil when its standard error is
// something else by now. That is looked at before it is opened.
func logOf(pid int) *os.File {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/2", pid), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != maxLog {
		return nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil
	}
	return f
}

// readLog is what was printed.
func readLog(f *os.File) string {
	if f == nil {
		return ""
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxLog))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimRight(b, "\x00"))
}
