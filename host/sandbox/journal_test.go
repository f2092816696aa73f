package sandbox_test

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// memory is a journal without a disk.
type memory struct {
	mu     sync.Mutex
	tables map[string]map[string][]byte
	// broken is asked with each label: whether the write fails, and whether it
	// is on disk then.
	broken func(label string) (fails, there bool)
}

var errDisk = errors.New("the disk is broken")

func (m *memory) Update(label string, f func(sandbox.Tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := &memory{tables: map[string]map[string][]byte{}}
	for table, rows := range m.tables {
		next.tables[table] = maps.Clone(rows)
	}
	if err := f(next); err != nil {
		return err
	}
	fails, there := false, true
	if m.broken != nil {
		fails, there = m.broken(label)
	}
	if !fails || there {
		m.tables = next.tables
	}
	if fails {
		return errDisk
	}
	return nil
}

func (m *memory) View(f func(sandbox.Tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f(m)
}

func (m *memory) Get(table, key string) []byte { return m.tables[table][key] }

func (m *memory) Put(table, key string, value []byte) error {
	if m.tables[table] == nil {
		m.tables[table] = map[string][]byte{}
	}
	m.tables[table][key] = value
	return nil
}

func (m *memory) Delete(table, key string) error {
	delete(m.tables[table], key)
	return nil
}

func (m *memory) Each(table string, f func(string, []byte) error) error {
	for _, key := range slices.Sorted(maps.Keys(m.tables[table])) {
		if err := f(key, m.tables[table][key]); err != nil {
			return err
		}
	}
	return nil
}

const id protocol.SandboxID = "sb-aaaaaaaaaaaaaaaa"

// tree is a sandbox of a parent with two children, one of which has a child.
func tree(t *testing.T, j *memory, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	line := func(id, node string, depth int, parent protocol.TimelineID, b protocol.BranchID, index int) sandbox.Record {
		return sandbox.Record{Key: id, Value: sandbox.LineRecord{ID: protocol.LineID(id), Node: node, Depth: depth, Parent: parent, Branch: b, Index: index,
			Timeline: protocol.TimelineID("tl" + id[2:])}}
	}
	timeline := func(id string, state sandbox.State) sandbox.Record {
		return sandbox.Record{Key: id, Value: sandbox.TimelineRecord{ID: protocol.TimelineID(id), Line: protocol.LineID("ln" + id[2:]), State: state}}
	}
	err := sandbox.Write(j,
		sandbox.Record{Key: string(id), Value: sandbox.SandboxRecord{ID: id, FirstLine: "ln-z", State: sandbox.StateRunning, Spec: spec}},
		line("ln-z", "0", 0, "", "", 0), timeline("tl-z", sandbox.StateLive),
		line("ln-y", "0.0", 1, "tl-z", "br-1", 0), timeline("tl-y", sandbox.StateLive),
		line("ln-x", "0.1", 1, "tl-z", "br-1", 1), timeline("tl-x", sandbox.StateStopped),
		line("ln-a", "0.0.0", 2, "tl-y", "br-2", 0), timeline("tl-a", sandbox.StateLive))
	if err != nil {
		t.Fatal(err)
	}
	s := sandbox.New(sandbox.Deps{Journal: j}, id, spec)
	t.Cleanup(s.Close)
	return s
}

func newJournal() *memory { return &memory{tables: map[string]map[string][]byte{}} }
