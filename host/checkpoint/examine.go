package checkpoint

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/ratoon-project/ratoon/host/checkpoint/framefile"
	"github.com/ratoon-project/ratoon/protocol"
)

// Report is what reading one checkpoint to its last byte has shown.
type Report struct {
	ID protocol.CheckpointID `json:"id"`
	// Bytes that were read for it; a base is read for the first one over it.
	Bytes int64 `json:"bytes"`
	// Durable tells that there were strong digests to hold it to. Else nothing
	// holds its base, and crc32c the rest.
	Durable bool     `json:"durable"`
	Damage  []Damage `json:"damage,omitempty"`
}

// Damage is one place where a checkpoint is not what it was.
type Damage struct {
	// Base is set when the file is one of its base's.
	Base protocol.BaseID `json:"base,omitempty"`
	// File is its name in the directory of the checkpoint or base, or
	// objects/NAME in that of the store.
	File string `json:"file"`
	// Offset in the file, in bytes, of the piece that is damaged: a run of the
	// pages, a frame, a block of the base, or the whole of a small file.
	Offset int64         `json:"offset"`
	Code   protocol.Code `json:"code"`
	Reason string        `json:"reason"`
}

// Progress of Examine, in bytes.
type Progress struct {
	Checkpoint protocol.CheckpointID `json:"checkpoint"`
	Done       int64                 `json:"done"`
	Total      int64                 `json:"total"`
}

// Examine reads checkpoints (none: all) with their bases to the last byte and
// tells of each what is damaged, in the order of ids. It goes on after damage;
// what is removed meanwhile is left out. progress may be nil; it and report are
// called from one goroutine.
func (s *Store) Examine(ctx context.Context, ids []protocol.CheckpointID, progress func(Progress), report func(Report) error) error {
	all := len(ids) == 0
	if all {
		list, bad, err := s.List()
		if err != nil {
			return err
		}
		for _, m := range list {
			ids = append(ids, m.ID)
		}
		for _, d := range bad {
			ids = append(ids, protocol.CheckpointID(d.ID))
		}
	}
	for _, id := range ids {
		if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
			return err
		}
	}
	e := &examiner{store: s, bases: map[protocol.BaseID][]Damage{}, objects: map[string][]Damage{}, progress: progress}
	e.measure(ids)
	for _, id := range ids {
		r, err := e.checkpoint(ctx, id)
		if protocol.CodeOf(err) == protocol.CodeUnknownCheckpoint && all {
			continue
		}
		if err != nil {
			return err
		}
		if err := report(r); err != nil {
			return err
		}
	}
	return nil
}

// examiner is one Examine.
type examiner struct {
	store    *Store
	bases    map[protocol.BaseID][]Damage // that were read
	objects  map[string][]Damage          // that were read
	progress func(Progress)
	at       Progress
}

// measure adds up what is to be read.
func (e *examiner) measure(ids []protocol.CheckpointID) {
	seen := map[string]bool{}
	for _, id := range ids {
		m, err := e.store.Get(id)
		if err != nil {
			continue
		}
		e.at.Total += m.Files.State.Size + m.Files.Pages.Size
		if b, err := e.store.Base(m.Base); err == nil && b.Durable && !seen[string(m.Base)] {
			seen[string(m.Base)] = true
			e.at.Total += b.RAM.Size
		}
		if m.Files.Frames == nil {
			continue
		}
		for _, o := range m.Files.Frames.Objects {
			if !seen[o.Name] {
				seen[o.Name] = true
				e.at.Total += o.Size
			}
		}
	}
}

// read counts bytes.
func (e *examiner) read(r *Report, n int64) {
	r.Bytes += n
	e.at.Done = min(e.at.Done+n, e.at.Total) // what changes meanwhile is read twice
	if e.progress != nil {
		e.progress(e.at)
	}
}

// checkpoint reads one. Its error is that of ctx, or CodeUnknownCheckpoint.
func (e *examiner) checkpoint(ctx context.Context, id protocol.CheckpointID) (Report, error) {
	e.at.Checkpoint = id
	for {
		before, _ := e.store.read(id)
		r, err := e.look(ctx, id)
		if err != nil || len(r.Damage) == 0 {
			return r, err
		}
		if after, readErr := e.store.read(id); readErr != nil || after.storedAs(before) {
			return r, nil
		}
		// What was missed is gone because it is stored in another way now.
	}
}

func (e *examiner) look(ctx context.Context, id protocol.CheckpointID) (Report, error) {
	r := Report{ID: id}
	m, err := e.store.Get(id)
	if err != nil {
		return r, r.add("", err)
	}
	r.Durable = m.Durable
	counter := counting(func(n int) { e.read(&r, int64(n)) })
	if _, err := e.store.scan(ctx, id, counter); err != nil {
		if err := r.add("", err); err != nil {
			return r, err
		}
	}
	for _, name := range m.Files.Frames.names() {
		damage, known := e.objects[name]
		if !known {
			o := Report{}
			if err := e.object(ctx, &r, name); err != nil {
				if err := o.add("", err); err != nil {
					return r, err
				}
			}
			damage = o.Damage
			e.objects[name] = damage
		}
		r.note(damage)
	}
	damage, known := e.bases[m.Base]
	if !known {
		b := Report{}
		if err := e.base(ctx, &r, m.Base); err != nil {
			if err := b.add(m.Base, err); err != nil {
				return r, err
			}
		}
		damage = b.Damage
		e.bases[m.Base] = damage
	}
	r.note(damage)
	return r, nil
}

// note adds damage that is not noted yet.
func (r *Report) note(damage []Damage) {
	for _, d := range damage {
		if !slices.ContainsFunc(r.Damage, func(o Damage) bool { return o.Base == d.Base && o.File == d.File && o.Offset == d.Offset }) {
			r.Damage = append(r.Damage, d)
		}
	}
}

// object reads a file of frames, also those of which the checkpoint needs none.
func (e *examiner) object(ctx context.Context, r *Report, name string) error {
	f, err := framefile.Open(e.store.objectPath(name), name)
	if err != nil {
		return objectError("verify", name, err)
	}
	if err := errors.Join(f.Verify(ctx, func(n int64) { e.read(r, n) }), f.Close()); err != nil {
		if context.Cause(ctx) != nil {
			return err
		}
		return objectError("verify", name, err)
	}
	return nil
}

// counting is a writer that counts.
type counting func(int)

// Write implements io.Writer.
func (c counting) Write(b []byte) (int, error) {
	c(len(b))
	return len(b), nil
}

// base reads a base, as far as it has checksums.
func (e *examiner) base(ctx context.Context, r *Report, id protocol.BaseID) error {
	if err := e.store.CheckBase(id); err != nil {
		return err
	}
	b, err := e.store.Base(id)
	if err != nil || !b.Durable {
		return err
	}
	err = b.RAM.verify(ctx, filepath.Join(e.store.baseDir(id), nameRAM), func(n int64) { e.read(r, n) })
	if err != nil {
		return unusable(baseName(id), nameRAM, err)
	}
	return nil
}

// add notes err as damage, unless it is something else.
func (r *Report) add(base protocol.BaseID, err error) error {
	coded, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		return err
	}
	switch coded.Code {
	case protocol.CodeCheckpointLost, protocol.CodeCheckpointRefused:
	default:
		return err
	}
	d := Damage{Base: base, Code: coded.Code, Reason: err.Error()}
	d.File, _ = coded.Details["file"].(string)
	d.Offset, _ = coded.Details["offset"].(int64)
	r.Damage = append(r.Damage, d)
	return nil
}
