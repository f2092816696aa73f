package admin

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/protocol"
)

// Client calls a daemon on its socket. Its methods are the routes. Every error
// of the server is a *protocol.Error; a daemon that cannot be reached is
// CodeUnavailable.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient makes a client; it does no I/O. The path may be of any length.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		dir, err := os.Open(filepath.Dir(socket))
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		var d net.Dialer
		return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket)))
	}
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}}}
}

// Socket is where the daemon is.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request.
type call struct {
	method, path string
	query        url.Values
	body         any       // sent as JSON; nil: none
	raw          io.Reader // sent as it is
	stream       bool      // elements are wanted
	key          string    // idempotency key
}

func (c *Client) do(ctx context.Context, q call) (*http.Response, error) {
	body := q.raw
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	target := "http://ratoon/v1" + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return nil, err
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.stream {
		req.Header.Set("Accept", ndjson)
	}
	if q.key != "" {
		req.Header.Set(HeaderKey, q.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	var e Error
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&e); err != nil || e.Code == "" {
		return nil, protocol.Errorf(protocol.CodeVersionMismatch, "%s, release %.40q, answers %s, which this release does not understand", c.socket, resp.Header.Get(HeaderRelease), resp.Status)
	}
	return nil, e.err()
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return protocol.Errorf(protocol.CodeUnavailable, "no ratoond answers at %s; start one, or name its socket with --socket", c.socket)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return protocol.Errorf(protocol.CodeUnavailable, "talk to ratoond at %s: %v", c.socket, err)
}

// get reads an answer into out; nil: none is wanted.
func (c *Client) get(ctx context.Context, q call, out any) error {
	resp, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else {
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	if err != nil {
		return c.unreachable(ctx, err)
	}
	return nil
}

// errCut is a stream that ended without its last element.
var errCut = errors.New("the stream was cut")

// elements calls f with each element of a stream until f says that it was the
// last.
func elements[T any](ctx context.Context, c *Client, q call, f func(T) (last bool, err error)) error {
	q.stream = true
	resp, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errCut
			}
			return c.unreachable(ctx, err)
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return protocol.Errorf(protocol.CodeVersionMismatch, "an element of the stream is not understood: %v", err)
		}
		if last, err := f(v); last || err != nil {
			return err
		}
	}
}

// NewKey makes an idempotency key.
func NewKey() string { return rand.Text() }

// Version asks for the daemon's.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	err = c.get(ctx, call{method: "GET", path: "/version"}, &v)
	return v, err
}

// Sandboxes lists all.
func (c *Client) Sandboxes(ctx context.Context) ([]daemon.Info, error) {
	var out Sandboxes
	err := c.get(ctx, call{method: "GET", path: "/sandboxes"}, &out)
	return out.Sandboxes, err
}

// Create starts a sandbox. progress is told what takes long; it may be nil.
func (c *Client) Create(ctx context.Context, r CreateSandbox, progress func(string)) (info daemon.Info, err error) {
	err = elements(ctx, c, call{method: "POST", path: "/sandboxes", body: r}, func(e CreateElement) (bool, error) {
		switch {
		case e.Error != nil:
			return true, e.Error.err()
		case e.End != nil:
			info = *e.End
			return true, nil
		case progress != nil:
			progress(e.Progress)
		}
		return false, nil
	})
	return info, err
}

func at(sandbox string, more ...string) string {
	p := "/sandboxes/" + url.PathEscape(sandbox)
	for _, m := range more {
		p += "/" + url.PathEscape(m)
	}
	return p
}

// Sandbox shows one, by id or name.
func (c *Client) Sandbox(ctx context.Context, sandbox string) (out daemon.Info, err error) {
	err = c.get(ctx, call{method: "GET", path: at(sandbox)}, &out)
	return out, err
}

// Remove removes one.
func (c *Client) Remove(ctx context.Context, sandbox string, force bool) error {
	return c.get(ctx, call{method: "DELETE", path: at(sandbox), query: url.Values{"force": {strconv.FormatBool(force)}}}, nil)
}

// Tree is its timelines and checkpoints.
func (c *Client) Tree(ctx context.Context, sandbox string) (out protocol.TreeResult, err error) {
	err = c.get(ctx, call{method: "GET", path: at(sandbox, "tree")}, &out)
	return out, err
}

// Snapshot makes a checkpoint.
func (c *Client) Snapshot(ctx context.Context, sandbox string, r MakeSnapshot) (out Checkpoint, err error) {
	err = c.get(ctx, call{method: "POST", path: at(sandbox, "snapshots"), body: r, key: NewKey()}, &out)
	return out, err
}

// Branch makes children.
func (c *Client) Branch(ctx context.Context, sandbox string, r MakeBranch) (out Branch, err error) {
	err = c.get(ctx, call{method: "POST", path: at(sandbox, "branches"), body: r, key: NewKey()}, &out)
	return out, err
}

// Restore replaces a timeline by one loaded from a checkpoint.
func (c *Client) Restore(ctx context.Context, sandbox string, r Restore) (out daemon.Info, err error) {
	err = c.get(ctx, call{method: "POST", path: at(sandbox, "restore"), body: r, key: NewKey()}, &out)
	return out, err
}

// Execs lists programs.
func (c *Client) Execs(ctx context.Context, sandbox string) ([]daemon.Exec, error) {
	var out Execs
	err := c.get(ctx, call{method: "GET", path: at(sandbox, "execs")}, &out)
	return out.Execs, err
}

// Exec starts a program.
func (c *Client) Exec(ctx context.Context, sandbox string, r StartExec) (out daemon.Exec, err error) {
	err = c.get(ctx, call{method: "POST", path: at(sandbox, "execs"), body: r, key: NewKey()}, &out)
	return out, err
}

// Output calls f with a program's output and returns how it ended; nil when it
// runs on.
func (c *Client) Output(ctx context.Context, sandbox string, a daemon.Attachment, f func(daemon.Output) error) (end *daemon.Ending, err error) {
	q := url.Values{"stdout": {strconv.FormatInt(a.Stdout, 10)}, "stderr": {strconv.FormatInt(a.Stderr, 10)}, "follow": {strconv.FormatBool(a.Follow)}}
	if a.Node != "" {
		q.Set("node", a.Node)
	}
	err = elements(ctx, c, call{method: "GET", path: at(sandbox, "execs", string(a.Exec), "output"), query: q}, func(e OutputElement) (bool, error) {
		switch {
		case e.Error != nil:
			return true, e.Error.err()
		case e.End != nil:
			end = e.End.Exit
			return true, nil
		case e.Output != nil:
			return false, f(*e.Output)
		}
		return false, nil
	})
	return end, err
}

func ofNode(node string) url.Values {
	if node == "" {
		return nil
	}
	return url.Values{"node": {node}}
}

// Input sends r to a program's standard input, and its end.
func (c *Client) Input(ctx context.Context, sandbox string, id protocol.ExecID, node string, r io.Reader) error {
	q := url.Values{"end": {"true"}}
	if node != "" {
		q.Set("node", node)
	}
	return c.get(ctx, call{method: "POST", path: at(sandbox, "execs", string(id), "stdin"), query: q, raw: io.NopCloser(r)}, nil)
}

// Signal sends a signal to a program.
func (c *Client) Signal(ctx context.Context, sandbox string, id protocol.ExecID, node, name string) error {
	return c.get(ctx, call{method: "POST", path: at(sandbox, "execs", string(id), "signal"), query: ofNode(node), body: Signal{name}}, nil)
}

// Resize sets the size of a program's terminal.
func (c *Client) Resize(ctx context.Context, sandbox string, id protocol.ExecID, node string, r Resize) error {
	return c.get(ctx, call{method: "POST", path: at(sandbox, "execs", string(id), "resize"), query: ofNode(node), body: r}, nil)
}

// TarOut reads a file of the guest's, or what is in a directory, as a tar
// stream.
func (c *Client) TarOut(ctx context.Context, sandbox, node, path string) (r io.ReadCloser, dir bool, err error) {
	q := url.Values{"path": {path}}
	if node != "" {
		q.Set("node", node)
	}
	resp, err := c.do(ctx, call{method: "GET", path: at(sandbox, "files"), query: q})
	if err != nil {
		return nil, false, err
	}
	return resp.Body, resp.Header.Get(HeaderKind) == kindDirectory, nil
}

// TarIn unpacks a tar stream in a directory of the guest's.
func (c *Client) TarIn(ctx context.Context, sandbox, node, path string, r io.Reader) error {
	q := url.Values{"path": {path}}
	if node != "" {
		q.Set("node", node)
	}
	return c.get(ctx, call{method: "PUT", path: at(sandbox, "files"), query: q, raw: io.NopCloser(r)}, nil)
}

// Checkpoints lists those of a sandbox, or of all.
func (c *Client) Checkpoints(ctx context.Context, sandbox string) ([]Checkpoint, error) {
	q := url.Values{}
	if sandbox != "" {
		q.Set("sandbox", sandbox)
	}
	var out Checkpoints
	err := c.get(ctx, call{method: "GET", path: "/checkpoints", query: q}, &out)
	return out.Checkpoints, err
}

// RemoveCheckpoint removes one.
func (c *Client) RemoveCheckpoint(ctx context.Context, id protocol.CheckpointID) error {
	return c.get(ctx, call{method: "DELETE", path: ofCheckpoint(id, "")}, nil)
}

func ofCheckpoint(id protocol.CheckpointID, more string) string {
	return "/checkpoints/" + url.PathEscape(string(id)) + more
}

// ChangeCheckpoint changes how long one is kept.
func (c *Client) ChangeCheckpoint(ctx context.Context, id protocol.CheckpointID, change ChangeCheckpoint) (out Checkpoint, err error) {
	err = c.get(ctx, call{method: "PATCH", path: ofCheckpoint(id, ""), body: change}, &out)
	return out, err
}

// Compact stores a checkpoint in the way that takes the least space.
func (c *Client) Compact(ctx context.Context, id protocol.CheckpointID) (out Checkpoint, err error) {
	err = c.get(ctx, call{method: "POST", path: ofCheckpoint(id, "/compact")}, &out)
	return out, err
}

// Dependents lists what RemoveCheckpoints would remove, the checkpoint last.
func (c *Client) Dependents(ctx context.Context, id protocol.CheckpointID) ([]Checkpoint, error) {
	var out Checkpoints
	err := c.get(ctx, call{method: "GET", path: ofCheckpoint(id, "/dependents")}, &out)
	return out.Checkpoints, err
}

// RemoveCheckpoints removes one with all that depends on it.
func (c *Client) RemoveCheckpoints(ctx context.Context, id protocol.CheckpointID) ([]protocol.CheckpointID, error) {
	var out Removed
	err := c.get(ctx, call{method: "DELETE", path: ofCheckpoint(id, ""), query: url.Values{"cascade": {"true"}}}, &out)
	return out.Removed, err
}

// Collect removes what nobody needs.
func (c *Client) Collect(ctx context.Context) (out daemon.Collected, err error) {
	err = c.get(ctx, call{method: "POST", path: "/gc"}, &out)
	return out, err
}

// Usage tells what takes disk space.
func (c *Client) Usage(ctx context.Context) (out daemon.Usage, err error) {
	err = c.get(ctx, call{method: "GET", path: "/usage"}, &out)
	return out, err
}

// Export writes a checkpoint as a file to w.
func (c *Client) Export(ctx context.Context, id protocol.CheckpointID, w io.Writer) error {
	resp, err := c.do(ctx, call{method: "GET", path: ofCheckpoint(id, "/export")})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	to := &sink{w: w}
	if _, err = io.Copy(to, resp.Body); err != nil && to.err == nil {
		return c.unreachable(ctx, err)
	}
	return to.err
}

// sink tells failures to write from those to read.
type sink struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (s *sink) Write(b []byte) (n int, err error) {
	n, s.err = s.w.Write(b)
	return n, s.err
}

// Import publishes the checkpoint that an exported file holds.
func (c *Client) Import(ctx context.Context, r io.Reader) (out Checkpoint, err error) {
	err = c.get(ctx, call{method: "POST", path: "/checkpoints/import", raw: io.NopCloser(r), key: NewKey()}, &out)
	return out, err
}

// Verify has checkpoints (none: all) read to the last byte; progress may be nil.
func (c *Client) Verify(ctx context.Context, ids []protocol.CheckpointID, progress func(checkpoint.Progress), report func(checkpoint.Report) error) error {
	return elements(ctx, c, call{method: "POST", path: "/checkpoints/verify", body: Verify{ids}}, func(e VerifyElement) (bool, error) {
		switch {
		case e.Error != nil:
			return true, e.Error.err()
		case e.Report != nil:
			return false, report(*e.Report)
		case e.Progress != nil && progress != nil:
			progress(*e.Progress)
		}
		return e.End != nil, nil
	})
}

// Events calls f with each event from the cursor on; with follow until ctx
// ends.
func (c *Client) Events(ctx context.Context, cursor int64, follow bool, f func(daemon.Event) error) error {
	q := url.Values{"cursor": {strconv.FormatInt(cursor, 10)}, "follow": {strconv.FormatBool(follow)}}
	return elements(ctx, c, call{method: "GET", path: "/events", query: q}, func(e EventElement) (bool, error) {
		switch {
		case e.Error != nil:
			return true, e.Error.err()
		case e.Event != nil:
			return false, f(*e.Event)
		}
		return e.End != nil, nil
	})
}
