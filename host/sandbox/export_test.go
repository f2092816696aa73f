package sandbox

import (
	"context"

	"github.com/ratoon-project/ratoon/protocol"
)

// New makes a sandbox without starting it.
func New(d Deps, id protocol.SandboxID, spec Spec) *Sandbox { return newSandbox(id, spec, d) }

// Record is one record of a table, to be written by Write.
type Record struct {
	Key   string
	Value any
}

// Write puts records into the journal.
func Write(j Journal, records ...Record) error {
	return j.Update("test", func(tx Tx) error {
		for _, r := range records {
			var err error
			switch v := r.Value.(type) {
			case SandboxRecord:
				err = sandboxes.put(tx, r.Key, v)
			case LineRecord:
				err = lines.put(tx, r.Key, v)
			case TimelineRecord:
				err = timelines.put(tx, r.Key, v)
			case BranchRecord:
				err = branches.put(tx, r.Key, v)
			}
			if err != nil {
				return err
			}
		}
		return ledgers.put(tx, ledgerKey, ledgerRecord{})
	})
}

// Ledger is what a model broker is given.
func (s *Sandbox) Ledger() Usage { return usage{s} }

// Reserve and Unreserve hold and give back the room of machines.
func (s *Sandbox) Reserve(n int) error { return s.reserve(n) }

// Unreserve gives back what Reserve held.
func (s *Sandbox) Unreserve(n int) { s.unreserve(n) }

// FillSlot gives a line's slot a result.
func (s *Sandbox) FillSlot(line LineRecord, r protocol.ChildResult) error {
	return s.commit("test", func(tx Tx) error { return s.fillSlot(tx, line, r) })
}

// EndTimelines ends timelines with their results.
func (s *Sandbox) EndTimelines(ids ...protocol.TimelineID) error {
	return s.commit("test", func(tx Tx) error { return s.endTimelines(tx, ids, nil) })
}

// Unended lists timelines, ancestors first.
func (s *Sandbox) Unended() (ids []protocol.TimelineID, err error) {
	err = s.view(func(tx Tx) error {
		ids, err = unended(tx)
		return err
	})
	return ids, err
}

// Descendants lists what is below a timeline.
func (s *Sandbox) Descendants(of protocol.TimelineID) (ids []protocol.TimelineID, err error) {
	err = s.view(func(tx Tx) error {
		ids, err = descendants(tx, of)
		return err
	})
	return ids, err
}

// Results are those of a branch that its parent has not got yet.
func (s *Sandbox) Results(parent protocol.TimelineID, b protocol.BranchID, have ...int) ([]protocol.ChildResult, error) {
	r, err := s.newResults(&timeline{sb: s, id: parent}, protocol.ResultsArgs{Branch: b, Have: have})
	return r.Results, err
}

// AwaitResults waits for one.
func (s *Sandbox) AwaitResults(ctx context.Context, parent protocol.TimelineID, a protocol.ResultsArgs) (any, error) {
	return s.awaitResults(ctx, &timeline{sb: s, id: parent}, a)
}

// Commit is one transaction that puts a line.
func (s *Sandbox) Commit(l LineRecord) error {
	return s.commit("test", func(tx Tx) error { return lines.put(tx, string(l.ID), l) })
}

// CheckBranch completes or refuses arguments.
func CheckBranch(a protocol.BranchArgs) error { return checkBranch(&a) }
