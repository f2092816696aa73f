package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
)

// entry is one line of the audit log: a request that may have changed
// something, after its end.
type entry struct {
	Time   time.Time `json:"time"`
	UID    *uint32   `json:"uid,omitempty"` // of the client; absent when the socket does not tell
	PID    int32     `json:"pid,omitempty"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Key    string    `json:"key,omitempty"`
	Status int       `json:"status"`
	Took   float64   `json:"took"` // seconds
}

type peerKey struct{}

// withPeer notes who is at the other end of a connection.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var peer *unix.Ucred
	outer := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if errors.Join(outer, err) != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, peer)
}

// audit appends what was done to the log. The file is opened each time, so that
// it may be moved away.
func (s *Server) audit(q *http.Request, status int, began time.Time) {
	if s.opt.Audit == "" || q.Method == http.MethodGet || q.Method == http.MethodHead {
		return
	}
	e := entry{Time: began.UTC(), Method: q.Method, Path: q.URL.RequestURI(), Key: q.Header.Get(HeaderKey), Status: status, Took: time.Since(began).Seconds()}
	if p, ok := q.Context().Value(peerKey{}).(*unix.Ucred); ok {
		e.UID, e.PID = &p.Uid, p.Pid
	}
	if err := appendLine(s.opt.Audit, e); err != nil {
		s.opt.Log.Error("write the audit log", "error", err, "method", e.Method, "path", e.Path, "status", status)
	}
}

func appendLine(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := fault.Point("admin.audit"); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("append to %s: %w", path, err)
	}
	return nil
}
