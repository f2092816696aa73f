package sandbox

import (
	"cmp"
	"context"
	"slices"

	"github.com/ratoon-project/ratoon/protocol"
)

// Tree is every timeline and checkpoint of the sandbox.
func (s *Sandbox) Tree(ctx context.Context) (protocol.TreeResult, error) {
	list, err := s.checkpoints.List(ctx)
	if err != nil {
		return protocol.TreeResult{}, err
	}
	return ReadTree(s.journal, s.id, list)
}

// ReadTree reads the tree of a sandbox that need not be running.
func ReadTree(j Journal, id protocol.SandboxID, list []Checkpoint) (protocol.TreeResult, error) {
	out := protocol.TreeResult{Sandbox: id, Timelines: []protocol.TreeTimeline{}, Checkpoints: []protocol.TreeCheckpoint{}}
	for _, cp := range list {
		out.Checkpoints = append(out.Checkpoints, protocol.TreeCheckpoint{ID: cp.ID, Timeline: cp.Timeline, Label: cp.Label,
			Class: string(cp.Class), Durable: cp.Durable, Created: cp.Created.UnixNano(), Bytes: cp.Bytes})
	}
	err := j.View(func(tx Tx) error {
		rec, err := sandboxes.need(tx, string(id))
		if err != nil {
			return err
		}
		out.State = string(rec.State)
		ls, err := lines.all(tx)
		if err != nil {
			return err
		}
		byID := map[protocol.LineID]LineRecord{}
		for _, l := range ls {
			byID[l.ID] = l
		}
		ts, err := timelines.all(tx)
		if err != nil {
			return err
		}
		slices.SortFunc(ts, func(a, b TimelineRecord) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
		})
		for _, t := range ts {
			l := byID[t.Line]
			tt := protocol.TreeTimeline{ID: t.ID, Line: t.Line, Node: l.Node, Origin: t.Origin, State: string(t.State), Label: l.Label}
			if t.Reason != nil {
				tt.Reason = t.Reason.Message
			}
			out.Timelines = append(out.Timelines, tt)
		}
		return nil
	})
	return out, err
}

func (s *Sandbox) whoami(t *timeline) (protocol.WhoamiResult, error) {
	line, err := s.lineOf(t)
	if err != nil {
		return protocol.WhoamiResult{}, err
	}
	w := protocol.WhoamiResult{Sandbox: s.id, Timeline: t.id, Line: line.ID, Node: line.Node, Depth: line.Depth, Origin: t.origin,
		Label: line.Label, Env: line.Env}
	if line.Branch != "" && !line.Detached {
		w.Branch, w.Index = line.Branch, &line.Index
	}
	return w, nil
}
