package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"slices"

	"github.com/ratoon-project/ratoon/host/checkpoint/framefile"
	"github.com/ratoon-project/ratoon/protocol"
)

// smallest is the names of the n smallest objects.
func smallest(objects []Object, n int) []string {
	sorted := slices.SortedFunc(slices.Values(objects), func(a, b Object) int { return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Name, b.Name)) })
	var out []string
	for _, o := range sorted[:min(n, len(sorted))] {
		out = append(out, o.Name)
	}
	return out
}

// frameOf names a frame.
type frameOf struct {
	object string
	frame  uint32
}

// liveFrames says which pages of which frames checkpoints are put together from,
// a bit for each page.
type liveFrames map[frameOf]uint16

func (l liveFrames) add(f *Frames) {
	for _, p := range f.pieces {
		l[frameOf{f.Objects[p.object].Name, p.frame}] |= (1<<p.pages - 1) << p.first
	}
}

// movedFrame is where a frame went.
type movedFrame struct {
	frame uint32
	first [framefile.Window / pageBytes]uint8 // of each page, its new place
}

// repack copies the frames of these objects that checkpoints are put together
// from into one new object, and points the checkpoints to it, one after
// another: each is whole before and after. Frames, and pages of frames, that
// nobody needs stay behind and go with the old objects. The caller holds
// packing.
func (s *Store) repack(ctx context.Context, names []string) error {
	refs, known, err := s.references()
	if err != nil || !known {
		return err
	}
	users, live := map[protocol.CheckpointID]bool{}, liveFrames{}
	for _, name := range names {
		for _, id := range refs[name] {
			if users[id] {
				continue
			}
			m, err := s.read(id)
			if protocol.CodeOf(err) == protocol.CodeUnknownCheckpoint {
				continue
			}
			if err != nil {
				return err
			}
			users[id] = true
			live.add(m.Files.Frames)
		}
	}
	moved, o, release, err := s.copyFrames(ctx, names, live)
	if err != nil {
		return err
	}
	defer release()
	for id := range users {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := s.rewrite(id, func(m *Manifest) { m.Files.Frames.move(moved, o) })
		if err != nil && protocol.CodeOf(err) != protocol.CodeUnknownCheckpoint {
			return err
		}
	}
	_, err = s.SweepObjects()
	return err
}

// copyFrames makes the new object, and says where each frame went.
func (s *Store) copyFrames(ctx context.Context, names []string, live liveFrames) (moved map[frameOf]movedFrame, o Object, release func(), err error) {
	moved = map[frameOf]movedFrame{}
	p, err := s.beginObject()
	if err != nil {
		return nil, o, nil, err
	}
	defer p.discard()
	for _, name := range names {
		if err := s.copyObject(ctx, p, name, live, moved); err != nil {
			return nil, o, nil, err
		}
	}
	if len(moved) == 0 {
		return moved, o, func() {}, nil
	}
	o, release, err = p.publish()
	return moved, o, release, err
}

func (s *Store) copyObject(ctx context.Context, p *pendingObject, name string, live liveFrames, moved map[frameOf]movedFrame) (err error) {
	f, err := framefile.Open(s.objectPath(name), name)
	if err != nil {
		return objectError("repack", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for i := range f.Frames() {
		at := frameOf{name, uint32(i)}
		if live[at] == 0 {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if moved[at], err = copyFrame(p.frames, f, i, live[at]); err != nil {
			return objectError("repack", name, err)
		}
	}
	return nil
}

// copyFrame copies a frame as it is, or only its live pages if those are less
// than half.
func copyFrame(to *framefile.Writer, f *framefile.File, frame int, live uint16) (m movedFrame, err error) {
	pages := f.ContentSize(frame) / pageBytes
	var n int
	if int64(bits.OnesCount16(live))*2 >= pages {
		for i := range m.first {
			m.first[i] = uint8(i)
		}
		n, err = to.Copy(f, frame)
	} else {
		var content, kept []byte
		if content, err = f.Read(frame, nil); err != nil {
			return m, err
		}
		for i := range pages {
			if live&(1<<i) != 0 {
				m.first[i] = uint8(len(kept) / pageBytes)
				kept = append(kept, content[i*pageBytes:(i+1)*pageBytes]...)
			}
		}
		n, err = to.Add(f.Window(frame), kept)
	}
	m.frame = uint32(n)
	return m, err
}

// move points pieces to where their frames went. The pages of a piece are all
// live, so they lie one after another in the new frame too.
func (f *Frames) move(moved map[frameOf]movedFrame, to Object) {
	old := f.Objects
	f.Objects = []Object{}
	place := func(o Object) uint8 {
		i := slices.IndexFunc(f.Objects, func(other Object) bool { return other.Name == o.Name })
		if i < 0 {
			i = len(f.Objects)
			f.Objects = append(f.Objects, o)
		}
		return uint8(i)
	}
	for i := range f.pieces {
		p := &f.pieces[i]
		o := old[p.object]
		if m, ok := moved[frameOf{o.Name, p.frame}]; ok {
			p.frame, p.first, o = m.frame, m.first[p.first], to
		}
		p.object = place(o)
	}
}

// wasteful are the objects of which less than half is pages that somebody
// needs.
func (s *Store) wasteful() ([]string, error) {
	refs, known, err := s.references()
	if err != nil || !known {
		return nil, err
	}
	live := liveFrames{}
	seen := map[protocol.CheckpointID]bool{}
	for _, ids := range refs {
		for _, id := range ids {
			if seen[id] {
				continue
			}
			seen[id] = true
			if m, err := s.read(id); err == nil { // else repack looks again
				live.add(m.Files.Frames)
			}
		}
	}
	var out []string
	for name := range refs {
		f, err := framefile.Open(s.objectPath(name), name)
		if err != nil {
			continue // damaged: the checkpoints over it are
		}
		var all, needed int64
		for i := range f.Frames() {
			n := f.Stored(i)
			all += n
			needed += n * int64(bits.OnesCount16(live[frameOf{name, uint32(i)}])) * pageBytes / f.ContentSize(i)
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		if needed > 0 && needed < all/2 {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// packAgain rewrites objects that are mostly pages that nobody needs. It
// returns how many.
func (s *Store) packAgain(ctx context.Context) (int, error) {
	s.packing.Lock()
	defer s.packing.Unlock()
	names, err := s.wasteful()
	if err != nil {
		return 0, err
	}
	for i, name := range names {
		if err := s.repack(ctx, []string{name}); err != nil {
			return i, typed(protocol.CodeInternal, "pack frames again", err)
		}
	}
	return len(names), nil
}
