package admin

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"path"

	"github.com/ratoon-project/ratoon/protocol"
)

const (
	tarType = "application/x-tar"
	// HeaderKind of an archive: of one file, or of what is in a directory.
	HeaderKind    = "Ratoon-File-Kind"
	kindFile      = "file"
	kindDirectory = "directory"
)

// filePath is the path in the guest.
func (q *request) filePath() (string, error) {
	p := q.URL.Query().Get("path")
	if !path.IsAbs(p) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "path=%.80q: want an absolute path in the guest", p)
	}
	return path.Clean(p), nil
}

// getFiles answers a file or directory as a tar stream. It has no last
// element: a tar without its end was cut.
func (s *Server) getFiles(q *request) error {
	p, err := q.filePath()
	if err != nil {
		return err
	}
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	r, err := sb.TarOut(q.Context(), q.URL.Query().Get("node"), p)
	if err != nil {
		return err
	}
	defer r.Close()
	first, err := r.Next()
	if err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", tarType)
	q.w.Header().Set(HeaderKind, kindFile)
	if r.Dir {
		q.w.Header().Set(HeaderKind, kindDirectory)
	}
	q.w.WriteHeader(http.StatusOK)
	for b := first; b != nil; b, err = r.Next() {
		if _, err := q.w.Write(b); err != nil {
			return err
		}
	}
	if err != nil {
		s.opt.Log.Warn("send an archive", "path", p, "error", err)
		panic(http.ErrAbortHandler) // the client must not take it for whole
	}
	return nil
}

// putFiles unpacks the tar stream of the body in a directory.
func (s *Server) putFiles(q *request) error {
	p, err := q.filePath()
	if err != nil {
		return err
	}
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	archive := bufio.NewReader(q.Body)
	if _, err := archive.Peek(1); errors.Is(err, io.EOF) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "no body: want a tar stream")
	}
	if err := sb.TarIn(q.Context(), q.URL.Query().Get("node"), p, archive); err != nil {
		return err
	}
	return q.done()
}
