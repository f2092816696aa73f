package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ratoon-project/ratoon/internal/fault"
)

// maxLine bounds one message of QMP; QEMU is not trusted.
const maxLine = 1 << 20

var errQMPClosed = errors.New("QMP connection is closed")

// commandError is QEMU's refusal of a command.
type commandError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *commandError) Error() string { return e.Desc }

// event is what QEMU tells unasked.
type event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// qmp is a client of the QEMU Machine Protocol: one command at a time.
type qmp struct {
	conn    *net.UnixConn
	timeout time.Duration
	turn    chan struct{} // holds a token while a command is under way
	replies chan reply
	done    chan struct{} // closed when the reader has ended

	mu     sync.Mutex
	nextID int
	err    error // why the reader ended
}

type reply struct {
	ID     int             `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *commandError   `json:"error"`
}

// newQMP takes the connection over, reads the greeting and leaves the
// negotiation mode. Events go to on, from one goroutine.
func newQMP(ctx context.Context, conn *net.UnixConn, timeout time.Duration, on func(event)) (*qmp, error) {
	q := &qmp{
		conn: conn, timeout: timeout, turn: make(chan struct{}, 1),
		replies: make(chan reply, 1), done: make(chan struct{}),
	}
	greeted := make(chan struct{})
	go q.read(on, greeted)
	select {
	case <-greeted:
	case <-q.done:
		return nil, fmt.Errorf("read QMP greeting: %w", q.failure())
	case <-ctx.Done():
		q.close()
		return nil, fmt.Errorf("read QMP greeting: %w", context.Cause(ctx))
	}
	if err := q.execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// close ends the connection and waits for the reader.
func (q *qmp) close() error {
	err := q.conn.Close()
	<-q.done
	return err
}

func (q *qmp) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

func (q *qmp) read(on func(event), greeted chan<- struct{}) {
	defer close(q.done)
	// Nothing is listened to any more: QEMU must not believe otherwise.
	defer q.conn.Close()
	lines := bufio.NewScanner(q.conn)
	lines.Buffer(make([]byte, 4096), maxLine)
	err := func() error {
		for lines.Scan() {
			var m struct {
				Greeting json.RawMessage `json:"QMP"`
				event
				reply
			}
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
				return fmt.Errorf("parse QMP: %w", err)
			}
			switch {
			case m.Name != "":
				on(m.event)
			case m.Greeting != nil && greeted != nil:
				close(greeted)
				greeted = nil
			case m.Return != nil || m.Error != nil:
				select { // make room: a reply whose asker gave up
				case <-q.replies:
				default:
				}
				q.replies <- m.reply
			}
		}
		return lines.Err()
	}()
	if err == nil {
		err = errQMPClosed
	}
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
}

// execute runs one command and decodes its answer into out, unless nil. Files
// are passed along with it.
func (q *qmp) execute(ctx context.Context, command string, arguments, out any, files ...*os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, fmt.Errorf("no answer within %s", q.timeout))
	defer cancel()
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return fmt.Errorf("run %s: %w", command, context.Cause(ctx))
	}
	if err := fault.Point("qmp." + command); err != nil {
		return err
	}
	r, err := q.roundTrip(ctx, command, arguments, files)
	if err == nil && r.Error != nil {
		err = r.Error
	}
	if err == nil && out != nil {
		err = json.Unmarshal(r.Return, out)
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", command, err)
	}
	return nil
}

func (q *qmp) roundTrip(ctx context.Context, command string, arguments any, files []*os.File) (reply, error) {
	q.mu.Lock()
	q.nextID++
	id := q.nextID
	q.mu.Unlock()
	msg, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, arguments, id})
	if err != nil {
		return reply{}, err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = syscall.UnixRights(fds...)
	}
	deadline, _ := ctx.Deadline()
	q.conn.SetWriteDeadline(deadline)
	if n, _, err := q.conn.WriteMsgUnix(msg, rights, nil); err != nil || n < len(msg) {
		// QEMU may have half a command: nothing can follow it.
		q.conn.Close()
		return reply{}, errors.Join(err, errQMPClosed)
	}
	for {
		select {
		case r := <-q.replies:
			if r.ID == id { // else the late answer to one that was given up
				return r, nil
			}
		case <-q.done:
			select {
			case r := <-q.replies:
				if r.ID == id {
					return r, nil
				}
			default:
			}
			return reply{}, q.failure()
		case <-ctx.Done():
			return reply{}, context.Cause(ctx)
		}
	}
}
