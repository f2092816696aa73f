package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

const (
	piece         = 64 << 10 // most content in one frame to the host
	maxOperations = 32
)

// Stream is one files stream of a link. Send must be done with v when it
// returns. If a Stream is an io.Closer, the end of Serve's context closes it.
type Stream interface {
	Send(v any) error
	Receive(v any) error
}

// Config tells a Server what to serve.
type Config struct {
	// Root is the directory that paths start from; "" is "/".
	Root string
}

// Server serves file operations. Make one with New.
type Server struct {
	root string
	gate gate
}

// New makes a Server.
func New(cfg Config) *Server {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	return &Server{root: cfg.Root}
}

// Quiesce returns when no operation touches a file, and none will until
// Resume. On error nothing is held.
func (s *Server) Quiesce(ctx context.Context) error { return s.gate.hold(ctx) }

// Resume ends Quiesce.
func (s *Server) Resume() { s.gate.release() }

// operation is one request under way.
type operation struct {
	*Server
	ctx    context.Context
	req    protocol.FileRequest
	stream Stream
	broken bool // the stream is
}

// Serve runs one operation and returns when its last frame is sent.
func (s *Server) Serve(ctx context.Context, req protocol.FileRequest, st Stream) {
	op := &operation{Server: s, ctx: ctx, req: req, stream: st}
	if closer, ok := st.(io.Closer); ok {
		stop := context.AfterFunc(ctx, func() { closer.Close() })
		defer stop()
	}
	err := s.gate.begin()
	if err == nil {
		err = op.run()
		s.gate.end()
	}
	if op.broken {
		return
	}
	// If the last frame cannot be sent, nobody is there to miss it.
	if err != nil {
		st.Send(&protocol.FileFrame{Error: wireError(req, err)})
		return
	}
	st.Send(&protocol.FileFrame{Done: true, End: true})
}

func (op *operation) run() error {
	p := op.req.Path
	if !path.IsAbs(p) || strings.IndexByte(p, 0) >= 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the path %q is not absolute, or holds a NUL byte", p)
	}
	op.req.Path = path.Clean(p)
	run, ok := map[string]func() error{
		"put": op.put, "get": op.get, "list": op.list, "stat": op.stat,
		"remove": op.remove, "mkdir": op.mkdir, "tar-in": op.tarIn, "tar-out": op.tarOut,
	}[op.req.Op]
	if !ok {
		return protocol.Errorf(protocol.CodeInvalidArgument, "there is no file operation %q", op.req.Op)
	}
	return run()
}

// step runs f, which touches files, when no capture is under way.
func (op *operation) step(f func() error) error {
	if err := op.gate.enter(op.ctx); err != nil {
		return err
	}
	defer op.gate.leave()
	return f()
}

func (op *operation) send(f *protocol.FileFrame) error {
	if err := op.stream.Send(f); err != nil {
		op.broken = true
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// receive is the next frame from the host, which may hold content or be the
// last.
func (op *operation) receive(f *protocol.FileFrame) error {
	*f = protocol.FileFrame{}
	if err := op.stream.Receive(f); err != nil {
		op.broken = true
		return fmt.Errorf("receive: %w", err)
	}
	if f.Error != nil {
		return protocol.Errorf(protocol.CodeCancelled, "the host gave up: %s", f.Error.Message)
	}
	return nil
}

// content is what the host sends, up to its End frame.
type content struct {
	op   *operation
	left []byte
	end  bool
}

func (c *content) Read(p []byte) (int, error) {
	for len(c.left) == 0 {
		if c.end {
			return 0, io.EOF
		}
		var f protocol.FileFrame
		if err := c.op.receive(&f); err != nil {
			return 0, err
		}
		c.left, c.end = f.Data, f.End
	}
	n := copy(p, c.left)
	c.left = c.left[n:]
	return n, nil
}

// Write sends content to the host.
func (op *operation) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n := min(piece, len(p)-done)
		if err := op.send(&protocol.FileFrame{Data: p[done : done+n]}); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

// resolve opens p as a process rooted in the Server's root would. os.Root
// alone refuses absolute links, of which a guest's root is full.
func (s *Server) resolve(p string, flags uint64) (*os.File, error) {
	root, err := unix.Open(s.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: s.root, Err: err}
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(root, "."+p, &how)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN): // a rename beside it
			continue
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: p, Err: err}
		}
		return os.NewFile(uintptr(fd), p), nil
	}
}

// dir opens the directory p; what is done in it stays in it.
func (s *Server) dir(p string) (*os.Root, error) {
	f, err := s.resolve(p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// parent opens the directory that holds the request's path, which must not be
// the root itself.
func (op *operation) parent() (dir *os.Root, name string, err error) {
	if op.req.Path == "/" {
		return nil, "", protocol.Errorf(protocol.CodeInvalidArgument, "%s of the root directory is not possible", op.req.Op)
	}
	dir, err = op.dir(path.Dir(op.req.Path))
	return dir, path.Base(op.req.Path), err
}

// wireError names the operation and the kind of failure.
func wireError(req protocol.FileRequest, err error) *protocol.Error {
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return protocol.AsError(err)
	}
	code := protocol.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = protocol.CodeNotFound
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = protocol.CodeDiskFull
	case errors.Is(err, unix.EFBIG):
		code = protocol.CodeTooLarge
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ETXTBSY), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		code = protocol.CodeBusy
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		code = protocol.CodeNotSupported
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = protocol.CodeCancelled
	case isArgument(err):
		code = protocol.CodeInvalidArgument
	}
	reason := bare(err)
	if e, ok := errors.AsType[*entryError](err); ok {
		reason = e
	}
	return protocol.Errorf(code, "%s %s: %v", req.Op, req.Path, reason)
}

// entryError is a failure at one entry of a tree.
type entryError struct {
	name string
	err  error
}

func (e *entryError) Error() string { return fmt.Sprintf("%s: %v", e.name, bare(e.err)) }
func (e *entryError) Unwrap() error { return e.err }

// bare is an error of a system call without its path, which is one under
// /proc/self/fd and would mislead.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}

func isArgument(err error) bool {
	for _, e := range []error{fs.ErrExist, fs.ErrPermission, unix.ENOTDIR, unix.EISDIR, unix.ENOTEMPTY, unix.ELOOP,
		unix.ENAMETOOLONG, unix.EINVAL, unix.EROFS, unix.EXDEV, unix.EMLINK, unix.ENXIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
