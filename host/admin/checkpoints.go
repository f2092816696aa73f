package admin

import (
	"net/http"

	"github.com/ratoon-project/ratoon/protocol"
)

func (s *Server) listCheckpoints(q *request) error {
	of := q.URL.Query().Get("sandbox")
	if of != "" {
		sb, err := s.d.Sandbox(of)
		if err != nil {
			return err
		}
		of = string(sb.ID())
	}
	all, err := s.d.Checkpoints()
	if err != nil {
		return err
	}
	out := Checkpoints{Checkpoints: []Checkpoint{}}
	for _, m := range all {
		if of == "" || string(m.Sandbox) == of {
			out.Checkpoints = append(out.Checkpoints, checkpointOf(m))
		}
	}
	return q.answer(http.StatusOK, out)
}

func (s *Server) showCheckpoint(q *request) error {
	id, err := protocol.ParseCheckpointID(q.PathValue("checkpoint"))
	if err != nil {
		return err
	}
	m, err := s.d.Checkpoint(id)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, checkpointOf(m))
}

func (s *Server) removeCheckpoint(q *request) error {
	id, err := protocol.ParseCheckpointID(q.PathValue("checkpoint"))
	if err != nil {
		return err
	}
	if err := s.d.RemoveCheckpoint(q.Context(), id); err != nil {
		return err
	}
	return q.done()
}
