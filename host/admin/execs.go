package admin

import (
	"errors"
	"io"
	"net/http"

	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/protocol"
)

func (s *Server) listExecs(q *request) error {
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	all, err := sb.Execs()
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, Execs{all})
}

func (s *Server) startExec(q *request) error {
	var body StartExec
	if err := q.decode(&body); err != nil {
		return err
	}
	timeout, err := seconds("timeout", body.Timeout)
	if err != nil {
		return err
	}
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	e, err := sb.Exec(daemon.Command{Node: body.Node, Spec: protocol.ExecSpec{Argv: body.Argv, Env: body.Env, Dir: body.Dir, User: body.User,
		TTY: body.TTY, Rows: body.Rows, Columns: body.Columns, Stdin: body.Stdin, Timeout: int64(timeout)}})
	if err != nil {
		return err
	}
	return q.answer(http.StatusCreated, e)
}

// exec is the program that the path names, with its node if one is named.
func (s *Server) exec(q *request) (sb *daemon.Sandbox, id protocol.ExecID, node string, err error) {
	if id, err = protocol.ParseExecID(q.PathValue("exec")); err != nil {
		return nil, "", "", err
	}
	sb, err = s.sandbox(q)
	return sb, id, q.URL.Query().Get("node"), err
}

func (s *Server) output(q *request) error {
	var a daemon.Attachment
	var err error
	if a.Stdout, err = q.offset("stdout"); err != nil {
		return err
	}
	if a.Stderr, err = q.offset("stderr"); err != nil {
		return err
	}
	if a.Follow, err = q.flag("follow"); err != nil {
		return err
	}
	var sb *daemon.Sandbox
	if sb, a.Exec, a.Node, err = s.exec(q); err != nil {
		return err
	}
	if err := sb.HasExec(a.Exec, a.Node); err != nil {
		return err
	}
	st := q.stream()
	end, err := sb.Attach(q.Context(), a, func(o daemon.Output) error { return st.send(OutputElement{Output: &o}) })
	if err != nil {
		return st.send(OutputElement{Error: toWire(err)})
	}
	return st.send(OutputElement{End: &OutputEnd{Running: end == nil, Exit: end}})
}

// stdin passes the body on as it comes.
func (s *Server) stdin(q *request) error {
	end, err := q.flag("end")
	if err != nil {
		return err
	}
	sb, id, node, err := s.exec(q)
	if err != nil {
		return err
	}
	for {
		b := make([]byte, 32<<10)
		n, err := q.Body.Read(b)
		if n > 0 {
			if err := sb.Input(q.Context(), id, node, b[:n], false); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := sb.Input(q.Context(), id, node, nil, end); err != nil {
		return err
	}
	return q.done()
}

func (s *Server) signal(q *request) error {
	var body Signal
	if err := q.decode(&body); err != nil {
		return err
	}
	sb, id, node, err := s.exec(q)
	if err != nil {
		return err
	}
	if err := sb.Signal(id, node, body.Signal); err != nil {
		return err
	}
	return q.done()
}

func (s *Server) resize(q *request) error {
	var body Resize
	if err := q.decode(&body); err != nil {
		return err
	}
	sb, id, node, err := s.exec(q)
	if err != nil {
		return err
	}
	if err := sb.Resize(id, node, body.Rows, body.Columns); err != nil {
		return err
	}
	return q.done()
}
