package checkpoint

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ratoon-project/ratoon/host/checkpoint/framefile"
	"github.com/ratoon-project/ratoon/protocol"
)

// pagesFile is the content of a checkpoint's pages, however it is stored. It
// belongs to one goroutine.
type pagesFile interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// flatPages are a pages file.
type flatPages struct {
	*os.File
	size int64
}

var _ pagesFile = (*flatPages)(nil)

// Size implements pagesFile.
func (f *flatPages) Size() int64 { return f.size }

// framedPages are pages in frames.
type framedPages struct {
	files  []*framefile.File
	pieces []piece
	starts []int64 // of the pieces, and the end
	// The last frame that was read of each file.
	last []lastFrame
}

type lastFrame struct {
	frame   uint32
	content []byte // nil: none
}

var _ pagesFile = (*framedPages)(nil)

// openFrames opens the files of frames that a manifest names.
func (s *Store) openFrames(m Manifest) (*framedPages, error) {
	f := m.Files.Frames
	p := &framedPages{pieces: f.pieces, last: make([]lastFrame, len(f.Objects))}
	for _, o := range f.Objects {
		file, err := framefile.Open(s.objectPath(o.Name), o.Name)
		if err != nil {
			return nil, errors.Join(objectError(checkpointName(m.ID), o.Name, err), p.Close())
		}
		p.files = append(p.files, file)
	}
	var at int64
	for i, x := range f.pieces {
		p.starts = append(p.starts, at)
		at += x.bytes()
		file := p.files[x.object]
		if int(x.frame) >= file.Frames() || int64(x.first)*pageBytes+x.bytes() > file.ContentSize(int(x.frame)) {
			return nil, errors.Join(unusable(checkpointName(m.ID), nameManifest, damagedAt(0, "piece %d is not in %s", i, file.Name())), p.Close())
		}
	}
	p.starts = append(p.starts, at)
	return p, nil
}

// Size implements pagesFile.
func (p *framedPages) Size() int64 { return p.starts[len(p.pieces)] }

// Close closes the files.
func (p *framedPages) Close() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// ReadAt implements io.ReaderAt.
func (p *framedPages) ReadAt(b []byte, off int64) (n int, err error) {
	i, found := slices.BinarySearch(p.starts, off)
	if !found {
		i--
	}
	for n < len(b) {
		if i >= len(p.pieces) {
			return n, io.EOF
		}
		content, err := p.content(p.pieces[i])
		if err != nil {
			return n, err
		}
		k := copy(b[n:], content[off-p.starts[i]:])
		n, off, i = n+k, off+int64(k), i+1
	}
	return n, nil
}

// content is what a piece holds; it is good until the next call.
func (p *framedPages) content(x piece) ([]byte, error) {
	last := &p.last[x.object]
	if last.content == nil || last.frame != x.frame {
		f := p.files[x.object]
		b, err := f.Read(int(x.frame), last.content)
		if err != nil {
			last.content = nil
			return nil, objectError("read pages", f.Name(), err)
		}
		*last = lastFrame{x.frame, b}
	}
	from := int64(x.first) * pageBytes
	return last.content[from : from+x.bytes()], nil
}

// fileOfObject is how the file of an object is named in errors.
func fileOfObject(name string) string { return "objects/" + name }

// objectError is the error of a file of frames.
func objectError(what, name string, err error) error {
	if d, ok := errors.AsType[*framefile.Damage](err); ok {
		err = damagedAt(d.Offset, "%s", d.Reason)
	}
	return unusable(what, fileOfObject(name), err)
}

// OpenPages opens the pages of a checkpoint, for as many readers as are wanted
// one after another: what is removed or compacted meanwhile can still be read.
// The manifest is the one that they belong to.
func (s *Store) OpenPages(id protocol.CheckpointID) (Manifest, *OpenedPages, error) {
	c, err := s.files(id)
	if err != nil {
		return Manifest{}, nil, err
	}
	return c.manifest, &OpenedPages{c}, nil
}

// OpenedPages are pages that are open. They belong to one goroutine.
type OpenedPages struct{ c *content }

// Reader reads the pages from their beginning.
func (p *OpenedPages) Reader() io.Reader { return io.NewSectionReader(p.c.pages, 0, p.c.pages.Size()) }

// Close closes them.
func (p *OpenedPages) Close() error { return p.c.Close() }

// files opens the files of a checkpoint, without its base. It looks again when
// they went because they are stored in another way now.
func (s *Store) files(id protocol.CheckpointID) (*content, error) {
	for {
		m, err := s.Get(id)
		if err != nil {
			return nil, err
		}
		c, err := s.openFiles(s.checkpointDir(id), m)
		if err == nil {
			return c, nil
		}
		again, readErr := s.read(id)
		if readErr != nil || !errors.Is(err, fs.ErrNotExist) || again.storedAs(m) {
			return nil, s.gone(id, err)
		}
	}
}

// openFiles opens what lies in the directory of a checkpoint, and its frames.
func (s *Store) openFiles(dir string, m Manifest) (*content, error) {
	c := &content{manifest: m}
	var err error
	if c.state, _, err = openRegular(filepath.Join(dir, nameState)); err != nil {
		return nil, unusable(checkpointName(m.ID), nameState, err)
	}
	if m.Files.Frames != nil {
		var p *framedPages
		if p, err = s.openFrames(m); err == nil {
			c.pages = p
		}
	} else {
		p := &flatPages{}
		if p.File, p.size, err = openRegular(filepath.Join(dir, namePages)); err == nil {
			c.pages = p
		}
	}
	if err != nil {
		return nil, errors.Join(unusable(checkpointName(m.ID), namePages, err), c.Close())
	}
	return c, nil
}

// scanSize refuses pages that are longer or shorter than their runs.
func (c *content) scanSize() error {
	if got, want := c.pages.Size(), c.manifest.Files.Pages.Size; got != want {
		return damagedAt(min(got, want), "it has %d bytes, want %d", got, want)
	}
	return nil
}
