package keep

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

// Record is what PID 1 remembers for its worker. Without it a new worker would
// take a stale prepare, and never acknowledge a thaw that is sent again.
type Record struct {
	Timeline    protocol.TimelineID `msgpack:"timeline"`
	Incarnation uint64              `msgpack:"incarnation"`
	// Seen is the newest freeze number since this timeline's first thaw.
	Seen protocol.Freeze `msgpack:"seen"`
	// Thawed is the freeze that the newest thaw ended; 0 before the first.
	Thawed   protocol.Freeze   `msgpack:"thawed"`
	Stream   protocol.StreamID `msgpack:"stream"`
	Epoch    uint64            `msgpack:"epoch"`
	Identity protocol.Identity `msgpack:"identity"`
	// Count grows by one with every thaw.
	Count uint64 `msgpack:"count"`
	// Watch is the program whose end ends this timeline.
	Watch *Watch `msgpack:"watch"`
}

// Watch names the program that came back with the outcome that made a
// timeline. Started tells it from a later process of the same pid.
type Watch struct {
	Key     protocol.Key `msgpack:"key"`
	PID     int          `msgpack:"pid"`
	Started uint64       `msgpack:"started"` // clock ticks since boot, /proc/PID/stat
}

// First is what PID 1 tells a new worker.
type First struct {
	Start  uint64 `msgpack:"start"` // 1, 2, ... within one boot
	Record Record `msgpack:"record"`
}

type ack struct {
	OK bool `msgpack:"ok"`
}

// Client is the worker's end.
type Client struct {
	mu   sync.Mutex // one Keep at a time
	conn io.ReadWriteCloser
}

// Dial takes over conn and reads what PID 1 says first.
func Dial(conn io.ReadWriteCloser) (*Client, First, error) {
	var first First
	if err := wire.ReadFrame(conn, &first, protocol.MaxControlFrame); err != nil {
		return nil, First{}, fmt.Errorf("read the first record: %w", err)
	}
	return &Client{conn: conn}, first, nil
}

// Keep returns when PID 1 holds r.
func (c *Client) Keep(r Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := wire.WriteFrame(c.conn, r, protocol.MaxControlFrame); err != nil {
		return fmt.Errorf("tell PID 1: %w", err)
	}
	var a ack
	if err := wire.ReadFrame(c.conn, &a, protocol.MaxControlFrame); err != nil {
		return fmt.Errorf("await PID 1: %w", err)
	}
	if !a.OK {
		return errors.New("tell PID 1: refused")
	}
	return nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Serve is PID 1's end: it tells first, then hands each record to save before
// it answers. It returns nil when the worker closes its end.
func Serve(conn io.ReadWriter, first First, save func(Record)) error {
	if err := wire.WriteFrame(conn, first, protocol.MaxControlFrame); err != nil {
		return fmt.Errorf("tell the worker its record: %w", err)
	}
	for {
		var r Record
		err := wire.ReadFrame(conn, &r, protocol.MaxControlFrame)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a record: %w", err)
		}
		save(r)
		if err := wire.WriteFrame(conn, ack{OK: true}, protocol.MaxControlFrame); err != nil {
			return fmt.Errorf("answer the worker: %w", err)
		}
	}
}
