package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// command is one run of another program.
type command struct {
	name string
	args []string
	dir  string
	env  []string  // added to ours
	out  io.Writer // standard output
	line func(string)
}

// toolPackage says which Debian package has a program.
var toolPackage = map[string]string{
	"apt-get": "apt", "apt-cache": "apt", "dpkg-deb": "dpkg", "mmdebstrap": "mmdebstrap", "newuidmap": "uidmap",
}

func output(ctx context.Context, c command) (string, error) {
	var out bytes.Buffer
	c.out = &out
	err := c.run(ctx)
	return out.String(), err
}

// run runs the program to its end. It is told to stop (SIGTERM, so that it can
// clean up) when ctx ends or this process dies, and is killed a little later.
func (c command) run(ctx context.Context) error {
	path, err := exec.LookPath(c.name)
	if err != nil {
		pkg := toolPackage[c.name]
		return &Error{"run " + c.name, fmt.Errorf("%w: %s", ErrNoTool, c.name), "as root: apt-get install " + pkg + " (`make setup` does it)"}
	}
	tail := &tailWriter{line: c.line}
	cmd := exec.CommandContext(ctx, path, c.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, c.out, tail
	cmd.Env = append(os.Environ(), append([]string{"LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}, c.env...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	done := make(chan error, 1)
	go func() {
		// The signal at our death is bound to the thread that started the
		// program, so that thread must last as long as the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	err = <-done
	if ctx.Err() != nil {
		return fmt.Errorf("run %s: %w", c.name, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("run %s: %w: %s", c.name, err, tail.text())
	}
	return nil
}

// tailWriter keeps the last lines of a program's standard error and hands each
// on as it comes.
type tailWriter struct {
	line    func(string)
	partial []byte
	last    []string
}

const (
	tailLines    = 12
	tailLineSize = 512
)

func (t *tailWriter) Write(b []byte) (int, error) {
	t.partial = append(t.partial, b...)
	for {
		i := bytes.IndexAny(t.partial, "\r\n")
		if i < 0 {
			break
		}
		t.keep(string(t.partial[:i]))
		t.partial = t.partial[i+1:]
	}
	if len(t.partial) > tailLineSize {
		t.keep(string(t.partial))
		t.partial = nil
	}
	return len(b), nil
}

func (t *tailWriter) keep(s string) {
	s = strings.TrimSpace(s)
	if s == "" {
		return
	}
	if t.line != nil {
		t.line(s)
	}
	t.last = append(t.last, s[:min(len(s), tailLineSize)])
	if len(t.last) > tailLines {
		t.last = t.last[1:]
	}
}

func (t *tailWriter) text() string {
	t.keep(string(t.partial))
	t.partial = nil
	return strings.Join(t.last, " | ")
}

// unreachable is how apt and its transports say that there is no network;
// their exit status does not tell.
var unreachable = regexp.MustCompile(`(?i)could not resolve|temporary failure resolving|(unable|failed|could not) to connect|could not connect|connection (timed out|refused)|network is unreachable|failed to fetch`)

func isNetwork(err error) bool {
	return err != nil && (errors.Is(err, ErrNoNetwork) || unreachable.MatchString(err.Error()))
}

func currentUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "root"
}
