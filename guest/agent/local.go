package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

const (
	// maxRequest is the longest local request: the largest arguments and
	// what is around them.
	maxRequest = protocol.MaxPayload + 4<<10
	// maxConns is how many programs may be connected at once; more get busy.
	maxConns = 1024
	// maxRequestMemory bounds the requests that are held until they are sent.
	maxRequestMemory = 2 * maxRequest
	// largeRequest is the size from which a request counts to it.
	largeRequest = 16 << 10
)

var kinds = []protocol.CallKind{
	protocol.CallSnapshot, protocol.CallRestore, protocol.CallBranch, protocol.CallFinish,
	protocol.CallAdopt, protocol.CallResults, protocol.CallCancel, protocol.CallDiscard,
	protocol.CallLLM, protocol.CallTree, protocol.CallWhoami, protocol.CallBudget, protocol.CallSync,
	protocol.LocalEvents,
}

// listenLocal makes the socket, in the place of a former worker's.
func listenLocal(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen for guest programs: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen for guest programs: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for guest programs: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen for guest programs: %w", err)
	}
	return l, nil
}

// acceptLocal serves guest programs until the listener is closed.
func (a *Agent) acceptLocal(ctx context.Context, l *net.UnixListener) {
	slots := make(chan struct{}, maxConns)
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptor left, or the peer is gone again
			sleep(ctx, 10*time.Millisecond)
			continue
		}
		select {
		case slots <- struct{}{}:
			a.tasks.Go(func() {
				defer func() { <-slots }()
				a.serveLocal(ctx, conn)
			})
		default:
			// Its buffer is empty, so this does not wait.
			reply(conn, protocol.LocalReply{Error: protocol.Errorf(protocol.CodeBusy, "%d programs are connected already", maxConns)})
			conn.Close()
		}
	}
}

// caller is a guest program that waits for its answer.
type caller struct {
	pid     int
	started uint64
	reply   chan protocol.LocalReply // of size 1: an answer never waits
}

var _ Caller = (*caller)(nil)

func (c *caller) Watch() (int, uint64) { return c.pid, c.started }

// serveLocal serves one connection: one request, one answer.
func (a *Agent) serveLocal(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { conn.Close() })

	req, charge, err := a.readRequest(ctx, conn)
	if err != nil {
		if e, ok := errors.AsType[*protocol.Error](err); ok {
			reply(conn, protocol.LocalReply{Error: e})
			discard(conn)
		}
		return
	}
	if req.Kind == protocol.LocalEvents {
		a.memory.Release(charge)
		a.serveEvents(ctx, conn)
		return
	}
	c := newCaller(conn, req)
	key, e := a.open(req, c, charge)
	if e != nil {
		reply(conn, protocol.LocalReply{Error: e})
		return
	}
	req.Arguments = nil

	select {
	case r := <-c.reply:
		reply(conn, r)
	case <-hangup(conn):
		a.step(func(m *Machine) []Effect {
			a.unchargeKey(key)
			return m.Gone(key)
		})
	case <-ctx.Done():
	}
}

func newCaller(conn *net.UnixConn, req protocol.LocalRequest) *caller {
	c := &caller{pid: req.Watch, reply: make(chan protocol.LocalReply, 1)}
	var err error
	if c.pid > 0 {
		c.started, err = startTime(c.pid)
	}
	if c.pid <= 0 || err != nil {
		c.pid = peer(conn)
		c.started, _ = startTime(c.pid)
	}
	return c
}

func peer(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// open enters the call and notes what it holds of the memory for requests.
func (a *Agent) open(req protocol.LocalRequest, c *caller, charge int64) (key protocol.Key, e *protocol.Error) {
	a.step(func(m *Machine) []Effect {
		var effects []Effect
		key, effects, e = m.Open(req.Kind, req.Arguments, c)
		switch {
		case e == nil && charge > 0:
			a.charged[key] = charge
		case charge > 0:
			a.memory.Release(charge)
		}
		return effects
	})
	if key.IsZero() && e == nil {
		e = protocol.Errorf(protocol.CodeAgentRestarted, "the agent is being restarted")
	}
	return key, e
}

// uncharge gives back what a call held, after it was sent.
func (a *Agent) uncharge(m protocol.Message) {
	c, ok := m.(*protocol.Call)
	if !ok {
		return
	}
	c.Arguments = nil
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unchargeKey(c.Key)
}

func (a *Agent) unchargeKey(key protocol.Key) {
	if n := a.charged[key]; n > 0 {
		delete(a.charged, key)
		a.memory.Release(n)
	}
}

// answer hands a caller its outcome.
func (a *Agent) answer(e Answer) {
	a.unchargeKey(e.Outcome.Key)
	r := protocol.LocalReply{Error: e.Outcome.Error, Value: e.Outcome.Value}
	if e.Resumed {
		event := freshEvent(a.machine.Event())
		r.Resume = &event
	}
	e.Caller.(*caller).reply <- r
}

// readRequest reads and checks the one request of a connection. An error that
// is no protocol error means that there is nobody to tell. Charge is what the
// request holds of the agent's memory for requests.
func (a *Agent) readRequest(ctx context.Context, conn *net.UnixConn) (req protocol.LocalRequest, charge int64, err error) {
	r := &patientReader{conn: conn, agent: a}
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return req, 0, fmt.Errorf("read the length: %w", err)
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > maxRequest {
		return req, 0, protocol.Errorf(protocol.CodeTooLarge, "the request has %d bytes, at most %d are taken", n, maxRequest)
	}
	if n > largeRequest {
		if err := a.memory.Acquire(ctx, n); err != nil {
			return req, 0, err
		}
		charge = n
		defer func() {
			if err != nil {
				a.memory.Release(charge)
			}
		}()
	}
	body, err := wire.ReadBody(io.MultiReader(bytes.NewReader(head[:]), r), maxRequest)
	if err != nil {
		return req, charge, err
	}
	if err := wire.Unmarshal(body, &req); err != nil {
		return req, charge, protocol.AsError(err)
	}
	return req, charge, checkRequest(req)
}

func checkRequest(req protocol.LocalRequest) error {
	if req.Version != protocol.Version {
		return protocol.Errorf(protocol.CodeVersionMismatch, "the helper speaks protocol version %d, the agent %d", req.Version, protocol.Version)
	}
	if !slices.Contains(kinds, req.Kind) {
		return protocol.Errorf(protocol.CodeNotSupported, "there is no call %.64q", req.Kind)
	}
	if len(req.Arguments) > protocol.MaxPayload {
		return protocol.Errorf(protocol.CodeTooLarge, "the arguments of %s have %d bytes, at most %d are taken", req.Kind, len(req.Arguments), protocol.MaxPayload)
	}
	if len(req.Arguments) == 0 {
		return nil
	}
	if err := wire.Precheck(req.Arguments); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the arguments of %s are not msgpack: %v", req.Kind, err)
	}
	return nil
}

// patientReader bounds the time in which a request has to arrive. Time in
// which the program is frozen does not count.
type patientReader struct {
	conn  *net.UnixConn
	agent *Agent
	until time.Time
	count uint64
}

func (p *patientReader) Read(b []byte) (int, error) {
	for {
		if p.until.IsZero() {
			_, p.count = p.agent.running()
			p.until = time.Now().Add(p.agent.cfg.Patience)
		}
		p.conn.SetReadDeadline(p.until)
		n, err := p.conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if running, count := p.agent.running(); running && count == p.count {
			return 0, protocol.Errorf(protocol.CodeTimeout, "the request did not arrive within %v", p.agent.cfg.Patience)
		}
		p.until = time.Time{}
	}
}

// hangup is closed when the program closes its connection, or writes after its
// request, which breaks the protocol.
func hangup(conn *net.UnixConn) <-chan struct{} {
	gone := make(chan struct{})
	conn.SetReadDeadline(time.Time{})
	go func() { // ends with the connection
		defer close(gone)
		var b [1]byte
		conn.Read(b[:])
	}()
	return gone
}

func reply(conn *net.UnixConn, r protocol.LocalReply) error {
	if err := wire.WriteFrame(conn, r, protocol.MaxMessage); err != nil {
		if protocol.CodeOf(err) == protocol.CodeTooLarge {
			return wire.WriteFrame(conn, protocol.LocalReply{Error: protocol.AsError(err)}, protocol.MaxMessage)
		}
		return err
	}
	return nil
}

// discard reads on a while: a program that is still writing its bad request
// would else see a broken connection instead of the answer.
func discard(conn *net.UnixConn) {
	conn.CloseWrite()
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	io.Copy(io.Discard, io.LimitReader(conn, protocol.MaxMessage))
}
