package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// openFiles starts an operation on the files of the timeline that holds a node.
func (s *Sandbox) openFiles(ctx context.Context, node string, r protocol.FileRequest) (*link.Stream, error) {
	sb, _, err := s.running()
	if err != nil {
		return nil, err
	}
	timeline, err := sb.Current(node)
	if err != nil {
		return nil, err
	}
	return sb.OpenStream(ctx, timeline, protocol.Open{Op: protocol.OpFiles, File: &r})
}

// Pieces are the pieces of a stream of the guest's.
type Pieces struct {
	// Dir: the archive holds what is in a directory, by names relative to it;
	// else it holds one file.
	Dir  bool
	st   *link.Stream
	stop func() bool
}

// Next is the next piece; nil after the last.
func (p *Pieces) Next() ([]byte, error) { return p.next(func(protocol.FileFrame) {}) }

// next shows all frames on the way to the next piece of content.
func (p *Pieces) next(see func(protocol.FileFrame)) ([]byte, error) {
	for {
		var f protocol.FileFrame
		err := p.st.Receive(&f)
		see(f)
		switch {
		case err != nil:
			return nil, cut(err)
		case f.Error != nil:
			return nil, f.Error
		case f.Done:
			return nil, nil
		case len(f.Data) > 0:
			return f.Data, nil
		}
	}
}

// Close ends the stream.
func (p *Pieces) Close() error {
	p.stop()
	return p.st.Close()
}

// cut is the error of a stream that ended before its operation: each capture
// ends the link, and files are not carried over it.
func cut(err error) error {
	return protocol.Errorf(protocol.CodeUnavailable, "the transfer was cut, by a snapshot or the machine's end: %v", err)
}

// TarOut reads a file or directory as a tar stream.
func (s *Sandbox) TarOut(ctx context.Context, node, path string) (*Pieces, error) {
	dir, err := s.isDir(ctx, node, path)
	if err != nil {
		return nil, err
	}
	p, err := s.pieces(ctx, node, protocol.FileRequest{Op: "tar-out", Path: path})
	if err != nil {
		return nil, err
	}
	p.Dir = dir
	return p, nil
}

func (s *Sandbox) pieces(ctx context.Context, node string, r protocol.FileRequest) (*Pieces, error) {
	st, err := s.openFiles(ctx, node, r)
	if err != nil {
		return nil, err
	}
	return &Pieces{st: st, stop: context.AfterFunc(ctx, func() { st.Close() })}, nil
}

// isDir tells whether a path is a directory, or a link to one.
func (s *Sandbox) isDir(ctx context.Context, node, path string) (bool, error) {
	p, err := s.pieces(ctx, node, protocol.FileRequest{Op: "stat", Path: path})
	if err != nil {
		return false, err
	}
	var mode uint32
	if _, err := p.next(func(f protocol.FileFrame) {
		if len(f.Entries) == 1 {
			mode = f.Entries[0].Mode
		}
	}); err != nil {
		return false, errors.Join(err, p.Close())
	}
	if err := p.Close(); err != nil || mode&unix.S_IFMT != unix.S_IFLNK {
		return mode&unix.S_IFMT == unix.S_IFDIR, err
	}
	if p, err = s.pieces(ctx, node, protocol.FileRequest{Op: "list", Path: path}); err != nil {
		return false, err
	}
	defer p.Close()
	_, err = p.next(func(protocol.FileFrame) {})
	return err == nil, nil
}

// TarIn unpacks a tar stream in a directory, which exists. It does not hide the
// error of r.
func (s *Sandbox) TarIn(ctx context.Context, node, path string, r io.Reader) error {
	st, err := s.openFiles(ctx, node, protocol.FileRequest{Op: "tar-in", Path: path})
	if err != nil {
		return err
	}
	defer st.Close()
	defer context.AfterFunc(ctx, func() { st.Close() })()
	// The guest may refuse before all is sent: its answer counts.
	sent := make(chan error, 1)
	go func() { sent <- sendAll(st, r) }()
	var f protocol.FileFrame
	err = st.Receive(&f)
	st.Close() // a sender that waits
	switch failed := <-sent; {
	case err == nil && f.Error != nil:
		return f.Error
	case err == nil && f.Done:
		return nil
	case failed != nil:
		return failed
	case err == nil:
		err = errors.New("no answer")
	}
	return cut(err)
}

func sendAll(st *link.Stream, r io.Reader) error {
	b := make([]byte, 64<<10)
	for {
		n, err := r.Read(b)
		if n > 0 {
			if err := st.Send(protocol.FileFrame{Data: b[:n]}); err != nil {
				return cut(err)
			}
		}
		if errors.Is(err, io.EOF) {
			return st.Send(protocol.FileFrame{End: true})
		}
		if err != nil {
			st.Close() // the guest must not take it for whole
			return fmt.Errorf("read the archive: %w", err)
		}
	}
}
