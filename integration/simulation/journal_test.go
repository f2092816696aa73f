package simulation_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// journal is the durable state: what a crash of the host leaves.
type journal struct {
	world *world

	mu     sync.Mutex // guards tables: views are read in the daemon's goroutines
	tables map[string]map[string][]byte

	applying *transaction

	// The records, decoded.
	sandbox   sandbox.SandboxRecord
	lines     map[string]sandbox.LineRecord
	timelines map[string]sandbox.TimelineRecord
	vms       map[string]sandbox.VMRecord
	streams   map[string]sandbox.StreamRecord
	branches  map[string]sandbox.BranchRecord
	restores  map[string]sandbox.RestoreRecord
	results   map[string]sandbox.ResultRecord
}

func newJournal(w *world) *journal {
	return &journal{world: w, tables: map[string]map[string][]byte{},
		lines: map[string]sandbox.LineRecord{}, timelines: map[string]sandbox.TimelineRecord{}, vms: map[string]sandbox.VMRecord{},
		streams: map[string]sandbox.StreamRecord{}, branches: map[string]sandbox.BranchRecord{},
		restores: map[string]sandbox.RestoreRecord{}, results: map[string]sandbox.ResultRecord{}}
}

// journalPort is the journal as one daemon sees it.
type journalPort struct{ host *daemon }

var _ sandbox.Journal = journalPort{}

var errUnclear = errors.New("the write of the journal failed")

func (p journalPort) Update(label string, f func(sandbox.Tx) error) error {
	j := p.host.world.journal
	return p.host.do(context.Background(), &parked{label: label, faults: []fault{absent, present}, effect: func(broken fault) error {
		tx := &transaction{journal: j, writes: map[string]map[string][]byte{}}
		if err := f(tx); err != nil {
			return err
		}
		if broken != absent {
			j.apply(tx)
		}
		if broken != none {
			return errUnclear
		}
		return nil
	}})
}

func (p journalPort) View(f func(sandbox.Tx) error) error {
	w := p.host.world
	w.mu.Lock()
	dead := p.host.dead
	w.mu.Unlock()
	if dead {
		return errKilled
	}
	w.journal.mu.Lock()
	defer w.journal.mu.Unlock()
	return f(&transaction{journal: w.journal})
}

// transaction holds its writes until it is applied; nil values are deletions.
type transaction struct {
	journal *journal
	writes  map[string]map[string][]byte // nil: read only
}

func (t *transaction) Get(table, key string) []byte {
	if v, ok := t.writes[table][key]; ok {
		return v
	}
	return t.journal.tables[table][key]
}

func (t *transaction) Put(table, key string, value []byte) error {
	if !slices.Contains(sandbox.Tables(), table) {
		return errors.New("no table " + table)
	}
	if t.writes[table] == nil {
		t.writes[table] = map[string][]byte{}
	}
	t.writes[table][key] = value
	return nil
}

func (t *transaction) Delete(table, key string) error { return t.Put(table, key, nil) }

func (t *transaction) Each(table string, f func(string, []byte) error) error {
	keys := slices.AppendSeq(make([]string, 0, 8), maps.Keys(t.journal.tables[table]))
	for key := range t.writes[table] {
		if _, there := t.journal.tables[table][key]; !there {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if v := t.Get(table, key); v != nil {
			if err := f(key, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (j *journal) apply(t *transaction) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.applying = t
	j.world.rules.committed(t)
	for _, table := range sandbox.Tables() {
		for _, key := range slices.Sorted(maps.Keys(t.writes[table])) {
			value := t.writes[table][key]
			if j.tables[table] == nil {
				j.tables[table] = map[string][]byte{}
			}
			if value == nil {
				delete(j.tables[table], key)
			} else {
				j.tables[table][key] = value
			}
			switch table {
			case "sandbox":
				decode(value, &j.sandbox)
			case "line":
				set(j.lines, key, value)
			case "timeline":
				set(j.timelines, key, value)
			case "vm":
				set(j.vms, key, value)
			case "stream":
				set(j.streams, key, value)
			case "branch":
				set(j.branches, key, value)
			case "restore":
				set(j.restores, key, value)
			case "result":
				set(j.results, key, value)
			}
		}
	}
}

func set[T any](m map[string]T, key string, value []byte) {
	if value == nil {
		delete(m, key)
		return
	}
	var v T
	decode(value, &v)
	m[key] = v
}

func decode(b []byte, v any) {
	if err := json.Unmarshal(b, v); err != nil {
		panic(err) // the coordinator wrote it
	}
}

// owner is the live timeline whose machine a VM is, false if there is none.
func (j *journal) owner(id protocol.VMID) (sandbox.TimelineRecord, bool) {
	for _, key := range slices.Sorted(maps.Keys(j.timelines)) {
		if t := j.timelines[key]; t.State == sandbox.StateLive && t.VM == id {
			return t, true
		}
	}
	return sandbox.TimelineRecord{}, false
}
