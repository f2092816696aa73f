package admin

import (
	"net/http"
	"time"

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

// checkpoint is the id that the path names.
func (q *request) checkpoint() (protocol.CheckpointID, error) {
	return protocol.ParseCheckpointID(q.PathValue("checkpoint"))
}

func (s *Server) showCheckpoint(q *request) error {
	id, err := q.checkpoint()
	if err != nil {
		return err
	}
	m, err := s.d.Checkpoint(id)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, checkpointOf(m))
}

// changeCheckpoint changes how long one is kept.
func (s *Server) changeCheckpoint(q *request) error {
	id, err := q.checkpoint()
	if err != nil {
		return err
	}
	var body ChangeCheckpoint
	if err := q.decode(&body); err != nil {
		return err
	}
	var at time.Time
	expires := body.Expires != ""
	if expires {
		if at, err = time.Parse(time.RFC3339, body.Expires); err != nil {
			return protocol.Errorf(protocol.CodeInvalidArgument, "expires=%.40q: want a time as in RFC 3339", body.Expires)
		}
	}
	if body.Lasts {
		at = time.Time{}
	}
	if _, err := s.d.Checkpoint(id); err != nil {
		return err
	}
	if body.Pinned != nil {
		if err := s.d.Pin(q.Context(), id, *body.Pinned); err != nil {
			return err
		}
	}
	if expires || body.Lasts {
		if err := s.d.Expire(id, at); err != nil {
			return err
		}
	}
	return s.showCheckpoint(q)
}

// compactCheckpoint stores one in the way that takes the least space.
func (s *Server) compactCheckpoint(q *request) error {
	id, err := q.checkpoint()
	if err != nil {
		return err
	}
	if err := s.d.CompactCheckpoint(q.Context(), id); err != nil {
		return err
	}
	return s.showCheckpoint(q)
}

// dependents lists what a removal with cascade would remove.
func (s *Server) dependents(q *request) error {
	id, err := q.checkpoint()
	if err != nil {
		return err
	}
	list, err := s.d.Dependents(id)
	if err != nil {
		return err
	}
	out := Checkpoints{Checkpoints: []Checkpoint{}}
	for _, m := range list {
		out.Checkpoints = append(out.Checkpoints, checkpointOf(m))
	}
	return q.answer(http.StatusOK, out)
}

func (s *Server) removeCheckpoint(q *request) error {
	id, err := q.checkpoint()
	if err != nil {
		return err
	}
	cascade, err := q.flag("cascade")
	if err != nil {
		return err
	}
	if cascade {
		removed, err := s.d.RemoveCheckpoints(q.Context(), id)
		if err != nil {
			return err
		}
		return q.answer(http.StatusOK, Removed{removed})
	}
	if err := s.d.RemoveCheckpoint(q.Context(), id); err != nil {
		return err
	}
	return q.done()
}

// usage tells what takes disk space.
func (s *Server) usage(q *request) error {
	u, err := s.d.Usage()
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, u)
}

// collect removes what nobody needs.
func (s *Server) collect(q *request) error {
	if err := q.decode(&struct{}{}); err != nil {
		return err
	}
	c, err := s.d.Collect(q.Context())
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, c)
}
