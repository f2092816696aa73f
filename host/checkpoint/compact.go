package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/ratoon-project/ratoon/host/checkpoint/framefile"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// maxRun is the longest run with data that memory.Delta takes.
const maxRun = 1 << 20

// Compact stores the pages of a durable checkpoint as frames, which it shares
// with checkpoints of the same sandbox that hold the same pages. Its base
// becomes the one that its own goes back to, so that no base made on the way is
// needed for it. Before the pages file goes the memory is read from the frames
// and compared byte by byte. A checkpoint that is compacted already stays as it
// is; one that is not durable is CodeInvalidArgument.
func (s *Store) Compact(ctx context.Context, id protocol.CheckpointID) error {
	if err := s.writable(); err != nil {
		return err
	}
	s.packing.Lock()
	defer s.packing.Unlock()
	m, err := s.Get(id)
	if err != nil {
		return err
	}
	if m.Files.Frames != nil {
		return nil
	}
	if !m.Durable {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s is not durable, and so not compacted", checkpointName(id))
	}
	if err := s.compact(ctx, id); err != nil {
		return s.gone(id, typed(protocol.CodeInternal, "compact "+checkpointName(id), err))
	}
	return nil
}

// compaction is one Compact under way.
type compaction struct {
	store *Store
	from  *content
	root  *content // the base to lie over, without pages
	// like is a compacted checkpoint that may hold the same pages; nil: none.
	like *content

	out     *pendingObject // nil: nothing new was found
	objects []Object       // the new one has no name yet
	fresh   int            // its place among them; -1: none
	sum     hash.Hash      // of the pages
	crc     hash.Hash32    // of the last run
	frames  Frames
	runs    Runs

	release []func()
}

func (s *Store) compact(ctx context.Context, id protocol.CheckpointID) (err error) {
	c := &compaction{store: s, fresh: -1, sum: sha256.New(), crc: crc32.New(castagnoli)}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.open(ctx, id); err != nil {
		return err
	}
	if err := s.free(c.from.manifest.Files.Pages.Size); err != nil {
		return err
	}
	if err := c.walk(ctx); err != nil {
		return err
	}
	next, err := c.finish()
	if err != nil {
		return err
	}
	if err := c.compare(ctx, next); err != nil {
		return err
	}
	if err := s.pointTo(id, next); err != nil {
		return err
	}
	return s.dropPages(id)
}

// open opens what is read, and holds it to its checksums: nothing else will be
// left of it.
func (c *compaction) open(ctx context.Context, id protocol.CheckpointID) (err error) {
	s := c.store
	if c.from, err = s.content(id); err != nil {
		return err
	}
	if _, err := c.from.scan(ctx, io.Discard); err != nil {
		return err
	}
	if err := s.VerifyBase(ctx, c.from.base.ID); err != nil {
		return err
	}
	root := s.root(ctx, c.from.base)
	release, err := s.HoldBase(root.ID)
	if err != nil {
		return err
	}
	c.release = append(c.release, release)
	c.root = &content{base: root}
	if err := c.root.openRAM(s.baseDir(root.ID)); err != nil {
		return err
	}
	return c.openLike(ctx)
}

// root is the base that another goes back to, as far as its ancestors are there
// and whole.
func (s *Store) root(ctx context.Context, b BaseManifest) BaseManifest {
	seen := map[protocol.BaseID]bool{} // no release makes a circle
	for b.From.Base != "" && !seen[b.ID] {
		seen[b.ID] = true
		up, err := s.Base(b.From.Base)
		if err != nil {
			up, err = s.baseUnder(b.From.Checkpoint)
		}
		if err == nil && up.RAM.Size == b.RAM.Size {
			err = errors.Join(s.makeBaseDurable(ctx, up.ID), s.VerifyBase(ctx, up.ID))
		}
		if err != nil || up.RAM.Size != b.RAM.Size {
			break
		}
		b = up
	}
	return b
}

// baseUnder is the base of the checkpoint that a base was made from. The one
// that it had then is gone when the checkpoint was compacted since.
func (s *Store) baseUnder(id protocol.CheckpointID) (BaseManifest, error) {
	if id == "" {
		return BaseManifest{}, errDamaged
	}
	m, err := s.summary(id)
	if err != nil {
		return BaseManifest{}, err
	}
	return s.Base(m.Base)
}

// openLike opens the compacted checkpoint that is most likely to have the same
// pages.
func (c *compaction) openLike(ctx context.Context) error {
	s := c.store
	id, objects, err := s.alike(c.from.manifest)
	if err != nil || id == "" {
		return err
	}
	if len(objects) >= MaxObjects { // with a new one they would be too many
		if err := s.repack(ctx, smallest(objects, MaxObjects/2+1)); err != nil {
			return c.unlike(err)
		}
	}
	like, err := s.files(id)
	if err != nil {
		return c.unlike(err)
	}
	if len(like.manifest.Files.Frames.Objects) >= MaxObjects {
		return like.Close() // they could not be packed
	}
	c.like = like
	c.release = append(c.release, s.holdObjects(like.manifest.Files.Frames.names()))
	return nil
}

// unlike goes on without a checkpoint that is gone or damaged: then all is new.
func (c *compaction) unlike(err error) error {
	if code := protocol.CodeOf(err); code != protocol.CodeUnknownCheckpoint && code != protocol.CodeCheckpointLost {
		return err
	}
	c.store.log.Warn("compact without a similar checkpoint", "checkpoint", c.from.manifest.ID, "error", err)
	return nil
}

// alike finds a compacted checkpoint of the same sandbox: of the same timeline
// or line rather than another, and near in time.
func (s *Store) alike(m Manifest) (protocol.CheckpointID, []Object, error) {
	list, _, err := s.List()
	if err != nil {
		return "", nil, err
	}
	list = slices.DeleteFunc(list, func(o Manifest) bool { return o.Sandbox != m.Sandbox || o.Files.Frames == nil })
	if len(list) == 0 {
		return "", nil, nil
	}
	rank := func(o Manifest) int {
		switch {
		case o.Timeline == m.Timeline:
			return 0
		case o.ID == m.Parent:
			return 1
		case o.Line == m.Line:
			return 2
		}
		return 3
	}
	best := slices.MinFunc(list, func(a, b Manifest) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(m.Created.Sub(a.Created).Abs(), m.Created.Sub(b.Created).Abs()))
	})
	return best.ID, best.Files.Frames.Objects, nil
}

// walk goes over the memory window by window.
func (c *compaction) walk(ctx context.Context) error {
	from, root := c.from.memory(), c.root.memory()
	var like *view
	if c.like != nil {
		like = c.like.memory()
	}
	const n = framefile.Window
	x, y := make([]byte, n), make([]byte, n)
	for off := int64(0); off < from.size; off += n {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		size := min(n, from.size-off)
		if c.untouched(from, off, size) || from.sparse(off, size) && root.sparse(off, size) {
			continue
		}
		if _, err := from.ReadAt(x[:size], off); err != nil {
			return err
		}
		if _, err := root.ReadAt(y[:size], off); err != nil {
			return err
		}
		if bytes.Equal(x[:size], y[:size]) {
			continue
		}
		if err := c.window(off, x[:size], y[:size], like); err != nil {
			return err
		}
	}
	return nil
}

// untouched tells whether a window is that of the base without reading it.
func (c *compaction) untouched(from *view, off, size int64) bool {
	return c.from.base.ID == c.root.base.ID && len(from.within(off, off+size)) == 0
}

// window stores what a window has other than the base: pages that another
// checkpoint has are looked for there, others make a new frame.
func (c *compaction) window(off int64, now, base []byte, like *view) error {
	known, err := c.locate(off, int64(len(now)), like)
	if err != nil {
		if err := c.unlike(err); err != nil {
			return err
		}
		known = nil
	}
	var fresh []byte
	for at := 0; at < len(now); at += pageBytes {
		p := now[at : at+pageBytes]
		switch {
		case bytes.Equal(p, base[at:at+pageBytes]):
		case bytes.Equal(p, zeros[:pageBytes]):
			c.addZero(off + int64(at))
		default:
			k, ok := known[at/pageBytes]
			if !ok || !bytes.Equal(k.content, p) {
				object, err := c.freshObject()
				if err != nil {
					return err
				}
				k.where = piece{object: object, frame: uint32(c.out.frames.Frames()), first: uint8(len(fresh) / pageBytes), pages: 1}
				fresh = append(fresh, p...)
			}
			c.addPage(off+int64(at), p, k.where)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	_, err = c.out.frames.Add(uint64(off/framefile.Window), fresh)
	return err
}

// knownPage is a page that another checkpoint has.
type knownPage struct {
	where   piece
	content []byte
}

// locate finds the pages of a window that the other checkpoint has, by their
// number in the window.
func (c *compaction) locate(off, size int64, like *view) (map[int]knownPage, error) {
	if like == nil {
		return nil, nil
	}
	pages := c.like.pages.(*framedPages)
	objects := c.like.manifest.Files.Frames.Objects
	known := map[int]knownPage{}
	for _, r := range like.within(off, off+size) {
		if r.Zero {
			continue
		}
		for at := max(r.Offset, off); at < min(r.Offset+r.Length, off+size); at += pageBytes {
			where, err := pages.where(r.at + at - r.Offset)
			if err != nil {
				return nil, err
			}
			b, err := pages.content(where)
			if err != nil {
				return nil, err
			}
			where.object = c.object(objects[where.object])
			known[int(at-off)/pageBytes] = knownPage{where, bytes.Clone(b)}
		}
	}
	return known, nil
}

// object is the place of an object among those of the checkpoint.
func (c *compaction) object(o Object) uint8 {
	i := slices.IndexFunc(c.objects, func(other Object) bool { return other.Name == o.Name })
	if i < 0 {
		i = len(c.objects)
		c.objects = append(c.objects, o)
	}
	return uint8(i)
}

// freshObject is the place of the one that is being written.
func (c *compaction) freshObject() (uint8, error) {
	if c.out == nil {
		var err error
		if c.out, err = c.store.beginObject(); err != nil {
			return 0, err
		}
		c.fresh = len(c.objects)
		c.objects = append(c.objects, Object{})
	}
	return uint8(c.fresh), nil
}

func (c *compaction) addZero(off int64) {
	if n := len(c.runs); n > 0 && c.runs[n-1].Zero && c.runs[n-1].Offset+c.runs[n-1].Length == off {
		c.runs[n-1].Length += pageBytes
		return
	}
	c.runs = append(c.runs, memory.Run{Offset: off, Length: pageBytes, Zero: true})
}

func (c *compaction) addPage(off int64, p []byte, where piece) {
	c.sum.Write(p)
	n := len(c.runs)
	if n > 0 && !c.runs[n-1].Zero && c.runs[n-1].Offset+c.runs[n-1].Length == off && c.runs[n-1].Length < maxRun {
		c.runs[n-1].Length += pageBytes
	} else {
		c.crc.Reset()
		c.runs = append(c.runs, memory.Run{Offset: off, Length: pageBytes})
	}
	c.crc.Write(p)
	c.runs[len(c.runs)-1].CRC = c.crc.Sum32()

	pieces := c.frames.pieces
	if n := len(pieces); n > 0 {
		last := &pieces[n-1]
		if last.object == where.object && last.frame == where.frame && last.first+last.pages == where.first {
			last.pages++
			return
		}
	}
	c.frames.pieces = append(pieces, where)
}

// finish publishes the new frames, and returns the manifest as it will be.
func (c *compaction) finish() (Manifest, error) {
	if c.out != nil {
		o, release, err := c.out.publish()
		if err != nil {
			return Manifest{}, err
		}
		c.release = append(c.release, release)
		c.frames.Own = o.Size
		c.objects[c.fresh] = o
	}
	c.useObjects()
	m := c.from.manifest
	m.Base = c.root.base.ID
	m.Files.Pages = Pages{Size: c.runs.Data(), SHA256: hexSum(c.sum), Runs: c.runs}
	m.Files.Frames = &c.frames
	m.Digest = m.contentDigest()
	return m, nil
}

// useObjects lists the objects that the pieces need, each once: the new one may
// have the content, and so the name, of one that was there.
func (c *compaction) useObjects() {
	all := c.objects
	c.objects = nil
	for i, p := range c.frames.pieces {
		c.frames.pieces[i].object = c.object(all[p.object])
	}
	c.frames.Objects = append([]Object{}, c.objects...)
}

// compare reads the memory back from the frames.
func (c *compaction) compare(ctx context.Context, next Manifest) error {
	pages, err := c.store.openFrames(next)
	if err != nil {
		return err
	}
	back := &content{manifest: next, base: c.root.base, pages: pages}
	defer back.Close()
	if err := back.openRAM(c.store.baseDir(next.Base)); err != nil {
		return err
	}
	if _, err := back.scanPages(ctx, io.Discard); err != nil {
		return err
	}
	same, err := sameMemory(ctx, c.from.memory(), back.memory())
	if err == nil && !same {
		err = protocol.Errorf(protocol.CodeInternal, "the frames of %s hold another memory", checkpointName(next.ID))
	}
	return err
}

// pointTo replaces the manifest by one that names other files, with the class
// and the like as they are by now.
func (s *Store) pointTo(id protocol.CheckpointID, next Manifest) error {
	return s.rewrite(id, func(m *Manifest) { m.Base, m.Files, m.Digest = next.Base, next.Files, next.Digest })
}

// dropPages removes the pages file of a checkpoint that has frames.
func (s *Store) dropPages(id protocol.CheckpointID) error {
	defer s.ids.lock(string(id))()
	m, err := s.summary(id)
	if err != nil || m.Files.Frames == nil {
		return err
	}
	path := filepath.Join(s.checkpointDir(id), namePages)
	if there, err := exists(path); err != nil || !there {
		return err
	}
	// After a crash the old manifest must not come back without them.
	if err := syncPath(labelRewriteDirSync, s.checkpointDir(id)); err != nil {
		return err
	}
	if err := fault.Point(labelCompactUnlink); err != nil {
		return err
	}
	n := freeable(path)
	if err := os.Remove(path); err != nil {
		return err
	}
	s.freed.Add(n)
	return nil
}

func (c *compaction) close() error {
	if c.out != nil {
		c.out.discard()
	}
	var errs []error
	for _, x := range []*content{c.from, c.root, c.like} {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	for _, f := range c.release {
		f()
	}
	return errors.Join(errs...)
}

// where is the piece of one page that holds a byte of the pages.
func (p *framedPages) where(off int64) (piece, error) {
	i, found := slices.BinarySearch(p.starts, off)
	if !found {
		i--
	}
	if i < 0 || i >= len(p.pieces) {
		return piece{}, fmt.Errorf("byte %d is in no piece", off)
	}
	x := p.pieces[i]
	x.first += uint8((off - p.starts[i]) / pageBytes)
	x.pages = 1
	return x, nil
}
