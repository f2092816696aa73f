package admin

import (
	"net/http"

	"github.com/ratoon-project/ratoon/protocol"
)

const exportType = "application/vnd.ratoon.checkpoint"

// exportCheckpoint answers a checkpoint as a file. One without its end was
// cut.
func (s *Server) exportCheckpoint(q *request) error {
	id, err := protocol.ParseCheckpointID(q.PathValue("checkpoint"))
	if err != nil {
		return err
	}
	out := &lazyBody{w: q.w, kind: exportType}
	err = s.d.ExportCheckpoint(q.Context(), id, out)
	if err != nil && out.began {
		s.opt.Log.Error("export checkpoint", "checkpoint", id, "error", err)
		panic(http.ErrAbortHandler) // the client must not take it for whole
	}
	return err
}

// lazyBody is a body that begins with its first byte: until then the answer may
// still be an error.
type lazyBody struct {
	w     http.ResponseWriter
	kind  string
	began bool
}

// Write implements io.Writer.
func (l *lazyBody) Write(b []byte) (int, error) {
	if !l.began {
		l.began = true
		l.w.Header().Set("Content-Type", l.kind)
		l.w.WriteHeader(http.StatusOK)
	}
	return l.w.Write(b)
}

// importCheckpoint publishes the checkpoint that the body is.
func (s *Server) importCheckpoint(q *request) error {
	m, fresh, err := s.d.ImportCheckpoint(q.Context(), q.Body)
	if err != nil {
		return err
	}
	if !fresh {
		return q.answer(http.StatusOK, checkpointOf(m))
	}
	return q.answer(http.StatusCreated, checkpointOf(m))
}
