package admin

import (
	"encoding/json"
	"net/http"
	"strings"
)

const ndjson = "application/x-ndjson"

// wantsStream tells whether the client asked for elements as they come.
func (q *request) wantsStream() bool { return strings.Contains(q.Header.Get("Accept"), ndjson) }

// stream is an answer of many elements.
type stream struct {
	w     http.ResponseWriter
	flush *http.ResponseController
}

func (q *request) stream() *stream {
	q.w.Header().Set("Content-Type", ndjson)
	q.w.WriteHeader(http.StatusOK)
	st := &stream{q.w, http.NewResponseController(q.w)}
	st.flush.Flush()
	return st
}

// send writes one element.
func (s *stream) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := s.w.Write(append(b, '\n')); err != nil {
		return err
	}
	return s.flush.Flush()
}
