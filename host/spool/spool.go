package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/internal/fault"
)

// Options of Open.
type Options struct {
	// Limit of all bytes that are kept; default 16 MiB.
	Limit int64
	// Sealed: nothing will be written.
	Sealed bool
}

// parts is into how many files the limit is divided: that share of it is what
// one drop loses.
const parts = 4

// maxRead is how much one Read returns.
const maxRead = 64 << 10

// Spool is one stream.
type Spool struct {
	dir   string
	limit int64

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	files   []part // oldest first; the last is written to
	out     *os.File
	end     int64 // offset of the next byte
	sealed  bool
}

// part is one file.
type part struct{ start, size int64 }

func (p part) end() int64 { return p.start + p.size }

// Open opens the spool in dir, which is made if there is none.
func Open(dir string, o Options) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make spool: %w", err)
	}
	s := &Spool{dir: dir, limit: cmp.Or(o.Limit, 16<<20), changed: make(chan struct{}), sealed: o.Sealed}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	for _, e := range entries {
		start, err := strconv.ParseInt(e.Name(), 16, 64)
		info, ierr := e.Info()
		if err != nil || ierr != nil || e.Name() != name(start) {
			continue // not ours
		}
		s.files = append(s.files, part{start, info.Size()})
		s.end = max(s.end, start+info.Size())
	}
	slices.SortFunc(s.files, func(a, b part) int { return cmp.Compare(a.start, b.start) })
	return s, nil
}

func name(start int64) string { return fmt.Sprintf("%016x", start) }

func (s *Spool) path(start int64) string { return filepath.Join(s.dir, name(start)) }

// End is the offset that the next byte written gets.
func (s *Spool) End() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Write appends b. It answers no error: see the package's text on full disks.
func (s *Spool) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return 0, os.ErrClosed
	}
	for rest := b; len(rest) > 0; {
		n := s.store(rest)
		s.end += int64(n)
		rest = rest[n:]
	}
	s.signal()
	return len(b), nil
}

func (s *Spool) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// store writes a part of b and returns by how much the end moves: also by what
// was left out. s.mu is held.
func (s *Spool) store(b []byte) int {
	if s.out == nil || s.files[len(s.files)-1].size >= s.limit/parts {
		if err := s.roll(); err != nil {
			return len(b)
		}
	}
	last := &s.files[len(s.files)-1]
	room := max(1, s.limit/parts-last.size)
	b = b[:min(int64(len(b)), room)]
	err := fault.Point("spool.write")
	n := 0
	if err == nil {
		n, err = s.out.Write(b)
	}
	last.size += int64(n)
	if err != nil {
		// What comes after the gap starts a file of its own.
		s.out.Close()
		s.out = nil
		return len(b)
	}
	return n
}

// roll starts a new file and drops the oldest ones.
func (s *Spool) roll() error {
	if s.out != nil {
		s.out.Close()
		s.out = nil
	}
	kept := int64(0)
	for _, p := range s.files {
		kept += p.size
	}
	for len(s.files) > 0 && kept > s.limit-s.limit/parts {
		if err := os.Remove(s.path(s.files[0].start)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		kept -= s.files[0].size
		s.files = s.files[1:]
	}
	// An empty one that an earlier failure left would have the same name.
	if n := len(s.files); n > 0 && s.files[n-1].start == s.end {
		s.files = s.files[:n-1]
	}
	f, err := os.OpenFile(s.path(s.end), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	s.out, s.files = f, append(s.files, part{start: s.end})
	return nil
}

// Piece is what a Read found.
type Piece struct {
	Data []byte
	// Offset of Data. It is beyond the one asked for when what was there is
	// not kept any more.
	Offset int64
}

// Read returns up to 64 KiB from offset on. It waits while there is nothing;
// io.EOF says that nothing will follow.
func (s *Spool) Read(ctx context.Context, offset int64) (Piece, error) {
	for {
		p, changed, err := s.look(offset)
		if err != nil || len(p.Data) > 0 {
			return p, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Piece{}, context.Cause(ctx)
		}
	}
}

func (s *Spool) look(offset int64) (Piece, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.files {
		if p.end() <= offset || p.size == 0 {
			continue
		}
		offset = max(offset, p.start)
		piece := Piece{Offset: offset, Data: make([]byte, min(maxRead, p.end()-offset))}
		f, err := os.Open(s.path(p.start))
		if err != nil {
			return Piece{}, nil, fmt.Errorf("read spool: %w", err)
		}
		defer f.Close()
		if _, err := f.ReadAt(piece.Data, offset-p.start); err != nil {
			return Piece{}, nil, fmt.Errorf("read spool: %w", err)
		}
		return piece, nil, nil
	}
	if s.sealed {
		return Piece{}, nil, io.EOF
	}
	return Piece{}, s.changed, nil
}

// Seal says that nothing follows. Idempotent.
func (s *Spool) Seal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return nil
	}
	s.sealed = true
	s.signal()
	if s.out == nil {
		return nil
	}
	err := s.out.Close()
	s.out = nil
	return err
}
