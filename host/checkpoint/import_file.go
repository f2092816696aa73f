package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/ratoon-project/ratoon/host/checkpoint/exportfile"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

const (
	// maxManifest bounds the manifests in an exported file, in bytes.
	maxManifest = 64 << 20
	// maxRAM bounds what a base may claim to be, in bytes.
	maxRAM = 1 << 40
	// roomEvery is after how much content free space is looked at again.
	roomEvery = 64 << 20
)

// ImportFile reads what Export wrote and publishes it, durable and of class
// named. Nothing is published before the file has been read to its end and
// held to all its checksums; its errors are those of exportfile. fresh is false
// when the checkpoint is here already with the same content; with another one
// it is CodeConflict. Whether it can be loaded here is for Compatible to say.
func (s *Store) ImportFile(ctx context.Context, r io.Reader) (m Manifest, fresh bool, err error) {
	if err := s.writable(); err != nil {
		return m, false, err
	}
	in := &incoming{store: s, in: exportfile.NewReader(r), sum: sha256.New()}
	defer in.discard()
	if err := in.read(ctx); err != nil {
		return m, false, typed(protocol.CodeInternal, "import checkpoint", err)
	}
	if m, fresh, err = in.publish(ctx); err != nil {
		return m, false, typed(protocol.CodeInternal, "import "+checkpointName(in.manifest.ID), err)
	}
	return m, fresh, nil
}

// incoming is a checkpoint that is being imported.
type incoming struct {
	store    *Store
	in       *exportfile.Reader
	text     bytes.Buffer // of the manifest that is being read
	manifest Manifest
	base     BaseManifest
	pending  *Pending
	ram      *PendingBase // nil: the base is here
	out      *os.File     // what is being written; nil: nothing
	sum      hash.Hash    // of the base's RAM
	hashed   int64
	room     int64 // bytes since free space was looked at
	release  func()
}

// parts in the order in which they come, and what is done after each.
var parts = []struct {
	part   exportfile.Part
	finish func(*incoming, context.Context) error
}{
	{exportfile.Manifest, (*incoming).finishManifest},
	{exportfile.Base, (*incoming).finishBase},
	{exportfile.RAM, (*incoming).finishRAM},
	{exportfile.State, (*incoming).finishState},
	{exportfile.Pages, (*incoming).finishPages},
}

// read reads the whole file into temporary directories. A part that is all
// zeros, or empty, has no content.
func (in *incoming) read(ctx context.Context) error {
	at := 0 // the part that is being read
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		c, err := in.in.Next()
		whole := errors.Is(err, io.EOF)
		if err != nil && !whole {
			return err
		}
		for at < len(parts) && (whole || parts[at].part != c.Part) {
			if err := parts[at].finish(in, ctx); err != nil {
				return err
			}
			at++
		}
		if whole {
			return in.check(ctx)
		}
		if err := in.take(c); err != nil {
			return err
		}
	}
}

// take keeps one piece.
func (in *incoming) take(c exportfile.Content) error {
	switch c.Part {
	case exportfile.Manifest, exportfile.Base:
		if in.text.Len()+len(c.Bytes) > maxManifest {
			return exportfile.Bad(c.At, "a manifest has more than %d bytes", maxManifest)
		}
		in.text.Write(c.Bytes)
		return nil
	}
	limit := map[exportfile.Part]int64{exportfile.RAM: in.base.RAM.Size, exportfile.State: in.manifest.Files.State.Size, exportfile.Pages: in.manifest.Files.Pages.Size}[c.Part]
	end := c.Offset + int64(len(c.Bytes))
	if end > limit {
		return exportfile.Bad(c.At, "%q goes on to byte %d of it; its manifest says %d", c.Part, end, limit)
	}
	if c.Part == exportfile.RAM {
		in.hash(c.Offset, c.Bytes)
		if in.ram == nil {
			return nil
		}
	}
	if in.room += int64(len(c.Bytes)); in.room > roomEvery {
		if err := in.store.Room(in.room); err != nil {
			return err
		}
		in.room = 0
	}
	return in.write(c.Offset, c.Bytes)
}

// hash adds content of the RAM, and the zeros before it, to its digest.
func (in *incoming) hash(off int64, p []byte) {
	for in.hashed < off {
		n := min(chunk, off-in.hashed)
		in.sum.Write(zeros[:n])
		in.hashed += n
	}
	in.sum.Write(p)
	in.hashed += int64(len(p))
}

// write leaves holes for zeros.
func (in *incoming) write(off int64, p []byte) error {
	if err := fault.Point(labelImportWrite); err != nil {
		return err
	}
	const piece = 64 << 10
	for len(p) > 0 {
		n := min(len(p), piece)
		if !bytes.Equal(p[:n], zeros[:n]) {
			if _, err := in.out.WriteAt(p[:n], off); err != nil {
				return err
			}
		}
		off, p = off+int64(n), p[n:]
	}
	return nil
}

// bad is damage that shows at the end of a part.
func (in *incoming) bad(err error) error {
	if protocol.CodeOf(err) == protocol.CodeCheckpointRefused || errors.Is(err, context.Canceled) {
		return err
	}
	return exportfile.Bad(in.in.At(), "in what was read up to here: %v", err)
}

func (in *incoming) finishManifest(context.Context) error {
	m, err := Decode(in.text.Bytes())
	in.text.Reset()
	if err != nil {
		return in.bad(err)
	}
	if m.Files.State.Size > maxRAM || m.Files.Pages.Size > maxRAM {
		return in.bad(fmt.Errorf("device state of %d bytes and pages of %d; at most %d can be", m.Files.State.Size, m.Files.Pages.Size, int64(maxRAM)))
	}
	in.manifest = m
	if err := in.store.Room(m.Files.State.Size + m.Files.Pages.Size); err != nil {
		return err
	}
	dir, err := in.store.makeTemporary(string(m.ID))
	if err != nil {
		return err
	}
	in.pending = &Pending{store: in.store, id: m.ID, dir: dir}
	return nil
}

func (in *incoming) finishBase(ctx context.Context) error {
	b, err := decodeBase(in.text.Bytes())
	in.text.Reset()
	if err != nil {
		return in.bad(err)
	}
	m := in.manifest
	switch {
	case b.ID != m.Base:
		return in.bad(fmt.Errorf("it holds %s, and the checkpoint lies over %s", b.ID, m.Base))
	case b.RAM.Size != m.Machine.MemoryBytes || b.RAM.Size > maxRAM:
		return in.bad(fmt.Errorf("the base has %d bytes, and the machine %d; at most %d can be", b.RAM.Size, m.Machine.MemoryBytes, int64(maxRAM)))
	case m.Files.Pages.Runs.End() > b.RAM.Size:
		return in.bad(fmt.Errorf("runs end at %d, the base at %d", m.Files.Pages.Runs.End(), b.RAM.Size))
	}
	in.base = b
	in.release = in.store.hold(string(b.ID)) // also while it is not here yet
	there, err := exists(in.store.baseDir(b.ID))
	if err != nil {
		return err
	}
	if there {
		return in.store.makeBaseDurable(ctx, b.ID) // for its digest
	}
	if in.ram, err = in.store.BeginBase(b.ID); err != nil {
		return err
	}
	return in.create(in.ram.RAMPath())
}

func (in *incoming) create(path string) (err error) {
	if err := fault.Point(labelImportCreate); err != nil {
		return err
	}
	in.out, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return err
}

// close ends a file, which may end in zeros.
func (in *incoming) close(size int64) error {
	if in.out == nil {
		return nil
	}
	err := errors.Join(in.out.Truncate(size), in.out.Close())
	in.out = nil
	return err
}

func (in *incoming) finishRAM(context.Context) error {
	in.hash(in.base.RAM.Size, nil)
	if err := in.close(in.base.RAM.Size); err != nil {
		return err
	}
	digest := hexSum(in.sum)
	if in.base.Durable && digest != in.base.RAM.SHA256 {
		return in.bad(fmt.Errorf("the base has sha256 %s, want %s", digest, in.base.RAM.SHA256))
	}
	in.base.RAM = BaseRAM{Size: in.base.RAM.Size, SHA256: digest}
	if in.ram == nil {
		if err := in.sameBase(); err != nil {
			return err
		}
	}
	return in.create(in.pending.StatePath())
}

// sameBase holds the base that is here to the digest of the one that came.
func (in *incoming) sameBase() error {
	have, err := in.store.Base(in.base.ID)
	if err != nil {
		return err
	}
	if !have.RAM.equal(in.base.RAM) {
		return protocol.Errorf(protocol.CodeConflict, "%s is here with another content", baseName(in.base.ID))
	}
	return nil
}

func (in *incoming) finishState(context.Context) error {
	if err := in.close(in.manifest.Files.State.Size); err != nil {
		return err
	}
	return in.create(in.pending.PagesPath())
}

func (in *incoming) finishPages(context.Context) error { return in.close(in.manifest.Files.Pages.Size) }

// check holds the files to their checksums.
func (in *incoming) check(ctx context.Context) error {
	c, err := in.content()
	if err != nil {
		return err
	}
	if _, err = c.scan(ctx, io.Discard); err != nil {
		err = in.bad(err)
	}
	return errors.Join(err, c.Close())
}

// content opens what was read.
func (in *incoming) content() (*content, error) {
	baseDir := in.store.baseDir(in.base.ID)
	if in.ram != nil {
		baseDir = filepath.Dir(in.ram.RAMPath())
	}
	c, err := in.store.openFiles(in.pending.dir, in.manifest)
	if err != nil {
		return nil, err
	}
	c.base = in.base
	if err := c.openRAM(baseDir); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// publish makes what was read a checkpoint, or compares it with the one that
// is here.
func (in *incoming) publish(ctx context.Context) (m Manifest, fresh bool, err error) {
	s, id := in.store, in.manifest.ID
	// One at a time over one base: of two the later finds what the earlier
	// published.
	defer s.ids.lock("import " + string(in.base.ID))()
	if there, err := exists(s.checkpointDir(id)); err != nil {
		return m, false, err
	} else if there {
		m, err = in.compare(ctx)
		return m, false, err
	}
	if err := in.publishBase(ctx); err != nil {
		return m, false, err
	}
	m = in.manifest
	m.Class, m.Expires = ClassNamed, time.Time{}
	if err := in.pending.Publish(ctx, m); err != nil {
		return m, false, err
	}
	if err := s.MakeDurable(ctx, id); err != nil {
		return m, false, err
	}
	// A checkpoint of this id that was lost is back.
	if err := removeIfThere(s.tombstone(id)); err != nil {
		return m, false, err
	}
	m, err = s.Get(id)
	return m, true, err
}

func (in *incoming) publishBase(ctx context.Context) error {
	if in.ram == nil {
		return nil
	}
	there, err := exists(in.store.baseDir(in.base.ID))
	if err != nil {
		return err
	}
	if !there {
		if err := in.ram.Publish(ctx, BaseManifest{ID: in.base.ID}); err != nil {
			return err
		}
	}
	// It reads the base back from the disk, so this holds for both.
	if err := in.store.makeBaseDurable(ctx, in.base.ID); err != nil {
		return err
	}
	return in.sameBase()
}

// compare tells whether the checkpoint that is here is the one that came.
func (in *incoming) compare(ctx context.Context) (m Manifest, err error) {
	s, id := in.store, in.manifest.ID
	have, err := s.content(id)
	if err != nil {
		return m, fmt.Errorf("it is here: %w", err)
	}
	defer func() { err = errors.Join(err, have.Close()) }()
	came, err := in.content()
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, came.Close()) }()
	if err := same(ctx, came, have); err != nil {
		return m, err
	}
	if err := s.MakeDurable(ctx, id); err != nil {
		return m, err
	}
	return s.Get(id)
}

// discard removes what was not published.
func (in *incoming) discard() {
	if in.out != nil {
		in.out.Close()
	}
	if in.pending != nil {
		in.pending.Discard()
	}
	if in.ram != nil {
		in.ram.Discard()
	}
	if in.release != nil {
		in.release()
	}
}
