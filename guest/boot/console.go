package boot

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// NewLog makes a logger for the console. The kernel's own lines have no date
// either, and the clock is not right before the first thaw.
func NewLog(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})).With("from", "ratoon")
}

// openConsole makes the console the standard streams of PID 1 and its worker.
func openConsole(*machine) error {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		// A machine without a console can do its work; nobody will hear of it.
		fd, err = unix.Open(os.DevNull, unix.O_RDWR, 0)
	}
	if err != nil {
		return fmt.Errorf("open a console: %w", err)
	}
	for to := range 3 {
		if fd == to {
			continue
		}
		if err := unix.Dup3(fd, to, 0); err != nil {
			return fmt.Errorf("make the console stream %d: %w", to, err)
		}
	}
	if fd > 2 {
		return unix.Close(fd)
	}
	return nil
}
