package admin

import (
	"net/http"
	"time"

	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

func (s *Server) listSandboxes(q *request) error {
	out := Sandboxes{Sandboxes: []daemon.Info{}}
	for _, sb := range s.d.Sandboxes() {
		info, err := sb.Info()
		if protocol.CodeOf(err) == protocol.CodeNotFound {
			continue // on its way here, or gone
		}
		if err != nil {
			return err
		}
		out.Sandboxes = append(out.Sandboxes, info)
	}
	return q.answer(http.StatusOK, out)
}

func (s *Server) createSandbox(q *request) error {
	var body CreateSandbox
	if err := q.decode(&body); err != nil {
		return err
	}
	r := daemon.Request{Name: body.Name, Kind: daemon.Kind{MemoryBytes: body.MemoryBytes, CPUs: body.CPUs}, Limits: body.Limits.limits(), Seed: []byte(body.Seed)}
	if body.From != "" {
		var err error
		if r.From, err = protocol.ParseCheckpointID(string(body.From)); err != nil {
			return err
		}
	}
	if !q.wantsStream() {
		info, err := s.create(q, r)
		if err != nil {
			return err
		}
		return q.answer(http.StatusCreated, info)
	}
	st := q.stream()
	r.Progress = func(text string) { st.send(CreateElement{Progress: text}) }
	info, err := s.create(q, r)
	if err != nil {
		return st.send(CreateElement{Error: toWire(err)})
	}
	return st.send(CreateElement{End: &info})
}

func (s *Server) create(q *request, r daemon.Request) (daemon.Info, error) {
	sb, err := s.d.Create(q.Context(), r)
	if err != nil {
		return daemon.Info{}, err
	}
	return sb.Info()
}

func (s *Server) showSandbox(q *request) error {
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	info, err := sb.Info()
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, info)
}

func (s *Server) removeSandbox(q *request) error {
	force, err := q.flag("force")
	if err != nil {
		return err
	}
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	if err := sb.Remove(q.Context(), force); err != nil {
		return err
	}
	return q.done()
}

func (s *Server) tree(q *request) error {
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	tree, err := sb.Tree()
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, tree)
}

func (s *Server) snapshot(q *request) error {
	var body MakeSnapshot
	if err := q.decode(&body); err != nil {
		return err
	}
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	m, err := sb.Snapshot(q.Context(), body.Node, sandbox.SnapshotOptions{Label: body.Label, Durable: body.Durable})
	if err != nil {
		return err
	}
	return q.answer(http.StatusCreated, checkpointOf(m))
}

func (s *Server) branch(q *request) error {
	var body MakeBranch
	if err := q.decode(&body); err != nil {
		return err
	}
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	timeout, err := seconds("timeout", body.Timeout)
	if err != nil {
		return err
	}
	id, err := sb.Branch(q.Context(), protocol.BranchArgs{N: body.N, At: body.At, MaxLive: body.MaxLive, MinOK: body.MinOK, Labels: body.Labels, Timeout: int64(timeout)})
	if err != nil {
		return err
	}
	return q.answer(http.StatusCreated, Branch{id})
}

func (s *Server) restore(q *request) error {
	var body Restore
	if err := q.decode(&body); err != nil {
		return err
	}
	id, err := protocol.ParseCheckpointID(string(body.Checkpoint))
	if err != nil {
		return err
	}
	sb, err := s.sandbox(q)
	if err != nil {
		return err
	}
	if err := sb.Restore(q.Context(), body.Node, id, sandbox.RestoreOptions{DropPresent: body.DropPresent, Detach: body.Detach}); err != nil {
		return err
	}
	info, err := sb.Info()
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, info)
}

// seconds is a time in a body.
func seconds(name string, v float64) (time.Duration, error) {
	if v < 0 || v > 1e9 {
		return 0, protocol.Errorf(protocol.CodeInvalidArgument, "%s of %v seconds: want 0 to 1e9", name, v)
	}
	return time.Duration(v * float64(time.Second)), nil
}
