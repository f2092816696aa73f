package sandbox

import (
	"context"
	"errors"

	"github.com/ratoon-project/ratoon/protocol"
)

// turns are those that an operation holds which ends several timelines.
type turns struct {
	sb   *Sandbox
	held map[protocol.TimelineID]bool // or without a machine, so without a turn
	mine []*timeline                  // to be released
}

// chosen lists timelines, ancestors before descendants.
type chosen func(Tx) ([]protocol.TimelineID, error)

// newTurns begins with those that the caller holds, and releases by itself.
func (s *Sandbox) newTurns(holds ...*timeline) *turns {
	h := &turns{sb: s, held: map[protocol.TimelineID]bool{}}
	for _, t := range holds {
		if t != nil {
			h.held[t.id] = true
		}
	}
	return h
}

func (h *turns) release() {
	for _, t := range h.mine {
		t.release()
	}
	h.mine = nil
}

// cover takes the turns of all that which lists. While they are waited for,
// lines may be restored and waves may be loaded: it looks again until there is
// nothing new. Operations under way there fail where they have not committed.
func (h *turns) cover(ctx context.Context, which chosen) error {
	for {
		var ids []protocol.TimelineID
		err := h.sb.view(func(tx Tx) error {
			var err error
			ids, err = which(tx)
			return err
		})
		if err != nil {
			return err
		}
		if h.has(ids) {
			return nil
		}
		for _, id := range ids {
			if err := h.take(ctx, id); err != nil {
				return err
			}
		}
	}
}

func (h *turns) take(ctx context.Context, id protocol.TimelineID) error {
	if h.held[id] {
		return nil
	}
	if t := h.sb.timeline(id); t != nil {
		t.interruptOperation(protocol.Errorf(protocol.CodeCancelled, "the timeline is being ended by another operation"))
		if err := t.take(ctx); err == nil {
			h.mine = append(h.mine, t)
		} else if t.ctx.Err() == nil || h.sb.ctx.Err() != nil {
			return err
		} // else it has ended meanwhile
	}
	h.held[id] = true
	return nil
}

func (h *turns) has(ids []protocol.TimelineID) bool {
	for _, id := range ids {
		if !h.held[id] {
			return false
		}
	}
	return true
}

var errUncovered = errors.New("a timeline has appeared whose turn is not held")

// commit runs a transaction that ends the timelines that which lists in it.
// Their turns are held, however many are added until it is on disk.
func (h *turns) commit(ctx context.Context, label string, which chosen, f func(Tx, []protocol.TimelineID) error, then ...func()) error {
	for {
		if err := h.cover(ctx, which); err != nil {
			return err
		}
		err := h.sb.commit(label, func(tx Tx) error {
			ids, err := which(tx)
			if err == nil && !h.has(ids) {
				err = errUncovered
			}
			if err != nil {
				return err
			}
			return f(tx, ids)
		}, then...)
		if !errors.Is(err, errUncovered) {
			return err
		}
	}
}
