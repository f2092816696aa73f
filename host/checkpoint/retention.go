package checkpoint

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Policy says which checkpoints of class auto a sandbox keeps. The zero value
// keeps the newest 8.
type Policy struct {
	// KeepLast is how many of the newest are kept, however old they are; 0: 8,
	// below 0: none.
	KeepLast int
	// KeepFor keeps those that are younger, however many they are; 0: age keeps
	// none.
	KeepFor time.Duration
}

// defaultKeepLast is what an agent may want to go back to without having
// asked for it.
const defaultKeepLast = 8

// Expired tells which checkpoints of one sandbox retention removes, oldest
// first: of class auto those that the policy does not keep, and of class auto
// or named those whose time has come. Pinned and internal ones are never among
// them. What an operation needs is for the caller to leave out.
func Expired(list []Manifest, p Policy, now time.Time) []protocol.CheckpointID {
	newest := slices.SortedStableFunc(slices.Values(list), func(a, b Manifest) int { return b.Created.Compare(a.Created) })
	last := cmp.Or(p.KeepLast, defaultKeepLast)
	var out []protocol.CheckpointID
	auto := 0
	for _, m := range newest {
		kept := true
		if m.Class == ClassAuto {
			auto++
			kept = auto <= last || p.KeepFor > 0 && now.Sub(m.Created) < p.KeepFor
		}
		if (m.Class == ClassAuto || m.Class == ClassNamed) && (!kept || !m.Expires.IsZero() && !now.Before(m.Expires)) {
			out = append(out, m.ID)
		}
	}
	slices.Reverse(out)
	return out
}

// settle is how old a checkpoint of class internal must be to be compacted: most
// are needed for moments.
const settle = 10 * time.Minute

// Cold tells which checkpoints are to be compacted, oldest first, so that those
// that are stored flat have at most so many bytes: the newest stay. A base
// counts with the first checkpoint over it; base says how many bytes it is, 0
// for one that stays anyway.
func Cold(list []Manifest, hot int64, now time.Time, base func(protocol.BaseID) int64) []protocol.CheckpointID {
	newest := slices.SortedStableFunc(slices.Values(list), func(a, b Manifest) int { return b.Created.Compare(a.Created) })
	counted := map[protocol.BaseID]bool{}
	var out []protocol.CheckpointID
	for _, m := range newest {
		if m.Files.Frames != nil {
			continue
		}
		hot -= m.Bytes()
		if !counted[m.Base] {
			counted[m.Base] = true
			hot -= base(m.Base)
		}
		if hot < 0 && (m.Class != ClassInternal || now.Sub(m.Created) > settle) {
			out = append(out, m.ID)
		}
	}
	slices.Reverse(out)
	return out
}

// SetClass moves a checkpoint to another class.
func (s *Store) SetClass(id protocol.CheckpointID, class Class) error {
	return s.change("set class of", id, func(m *Manifest) { m.Class = class })
}

// SetExpiry says when retention may remove a checkpoint; the zero time: never.
func (s *Store) SetExpiry(id protocol.CheckpointID, at time.Time) error {
	return s.change("set expiry of", id, func(m *Manifest) { m.Expires = at })
}

// Pin makes a checkpoint durable and keeps it from being removed until Unpin.
// One of class internal is an operation's, and CodeInvalidArgument.
func (s *Store) Pin(ctx context.Context, id protocol.CheckpointID) error {
	m, err := s.Get(id)
	if err != nil {
		return err
	}
	if m.Class == ClassInternal {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s is part of an operation and cannot be pinned", checkpointName(id))
	}
	if err := s.MakeDurable(ctx, id); err != nil {
		return err
	}
	return s.SetClass(id, ClassPinned)
}

// Unpin makes a pinned checkpoint one of class named; others stay as they are.
func (s *Store) Unpin(id protocol.CheckpointID) error {
	return s.change("unpin", id, func(m *Manifest) {
		if m.Class == ClassPinned {
			m.Class = ClassNamed
		}
	})
}

func (s *Store) change(what string, id protocol.CheckpointID, change func(*Manifest)) error {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return err
	}
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.rewrite(id, change); err != nil {
		return typed(protocol.CodeInternal, what+" "+checkpointName(id), err)
	}
	return nil
}
