package daemon

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Kind is the kind of machines that a sandbox has.
type Kind struct {
	MemoryBytes int64
	CPUs        int
}

// kindRecord says it in the sandbox's journal, before the first machine.
type kindRecord struct {
	Kind Kind
	Name string `json:",omitempty"`
	// From is the checkpoint of another sandbox that this one started from.
	From protocol.CheckpointID `json:",omitempty"`
}

// execRecord is one program in one line.
type execRecord struct {
	ID      protocol.ExecID
	Line    protocol.LineID
	Node    string
	Argv    []string
	TTY     bool `json:",omitempty"`
	Stdin   bool `json:",omitempty"`
	Started time.Time
	Ended   time.Time          `json:",omitzero"`
	Exit    *protocol.ExecExit `json:",omitempty"`
	Reason  *protocol.Error    `json:",omitempty"` // why it ended without a status

	// Output of Timeline from the offsets From lies in the spools from At on.
	Timeline protocol.TimelineID
	From, At protocol.ExecOffsets
}

// over tells whether nothing more is to come.
func (r *execRecord) over() bool { return r.Exit != nil || r.Reason != nil }

// Tables of this package in the journal of a sandbox.
const (
	tableKind = "host.kind"
	tableExec = "host.exec"
	onlyKey   = "sandbox"
)

func (k execKey) String() string { return string(k.line) + "/" + string(k.id) }

// put writes one record in a transaction of its own.
func (s *Sandbox) put(label, table, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.journal.Update(label, func(tx sandbox.Tx) error { return tx.Put(table, key, b) })
}

// get reads one record; false when there is none.
func (s *Sandbox) get(table, key string, v any) (bool, error) {
	found := false
	err := s.journal.View(func(tx sandbox.Tx) error {
		b := tx.Get(table, key)
		found = b != nil
		if !found {
			return nil
		}
		return decode(table, key, b, v)
	})
	return found, err
}

func decode(table, key string, b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read record %s %s: %w", table, key, err)
	}
	return nil
}

// execRecords lists the programs, in no order.
func (s *Sandbox) execRecords() ([]execRecord, error) {
	var out []execRecord
	err := s.journal.View(func(tx sandbox.Tx) error {
		return tx.Each(tableExec, func(key string, b []byte) error {
			var r execRecord
			if err := decode(tableExec, key, b, &r); err != nil {
				return err
			}
			out = append(out, r)
			return nil
		})
	})
	return out, err
}
