package admin

import (
	"net/http"

	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/protocol"
)

func routes() []route {
	return []route{
		{method: "GET", path: "/v1/version", serve: (*Server).version},
		{method: "GET", path: "/v1/openapi.yaml", serve: (*Server).openapi},
		{method: "GET", path: "/v1/metrics", serve: (*Server).metrics},
		{method: "POST", path: "/v1/gc", serve: (*Server).collect},
		{method: "GET", path: "/v1/usage", serve: (*Server).usage},
		{method: "GET", path: "/v1/events", query: "cursor follow", endless: true, serve: (*Server).events},

		{method: "GET", path: "/v1/sandboxes", serve: (*Server).listSandboxes},
		{method: "POST", path: "/v1/sandboxes", creates: true, serve: (*Server).createSandbox},
		{method: "GET", path: "/v1/sandboxes/{sandbox}", serve: (*Server).showSandbox},
		{method: "DELETE", path: "/v1/sandboxes/{sandbox}", query: "force", serve: (*Server).removeSandbox},
		{method: "GET", path: "/v1/sandboxes/{sandbox}/tree", serve: (*Server).tree},
		{method: "POST", path: "/v1/sandboxes/{sandbox}/snapshots", creates: true, serve: (*Server).snapshot},
		{method: "POST", path: "/v1/sandboxes/{sandbox}/branches", creates: true, serve: (*Server).branch},
		{method: "POST", path: "/v1/sandboxes/{sandbox}/restore", creates: true, serve: (*Server).restore},

		{method: "GET", path: "/v1/sandboxes/{sandbox}/execs", serve: (*Server).listExecs},
		{method: "POST", path: "/v1/sandboxes/{sandbox}/execs", creates: true, serve: (*Server).startExec},
		{method: "GET", path: "/v1/sandboxes/{sandbox}/execs/{exec}/output", query: "node stdout stderr follow", endless: true, serve: (*Server).output},
		{method: "POST", path: "/v1/sandboxes/{sandbox}/execs/{exec}/stdin", query: "node end", kind: "application/octet-stream", stream: true, endless: true, serve: (*Server).stdin},
		{method: "POST", path: "/v1/sandboxes/{sandbox}/execs/{exec}/signal", query: "node", serve: (*Server).signal},
		{method: "POST", path: "/v1/sandboxes/{sandbox}/execs/{exec}/resize", query: "node", serve: (*Server).resize},

		{method: "GET", path: "/v1/sandboxes/{sandbox}/files", query: "node path", serve: (*Server).getFiles},
		{method: "PUT", path: "/v1/sandboxes/{sandbox}/files", query: "node path", kind: tarType, stream: true, serve: (*Server).putFiles},

		{method: "GET", path: "/v1/checkpoints", query: "sandbox", serve: (*Server).listCheckpoints},
		{method: "POST", path: "/v1/checkpoints/import", kind: exportType, creates: true, stream: true, serve: (*Server).importCheckpoint},
		{method: "POST", path: "/v1/checkpoints/verify", endless: true, serve: (*Server).verifyCheckpoints},
		{method: "GET", path: "/v1/checkpoints/{checkpoint}", serve: (*Server).showCheckpoint},
		{method: "PATCH", path: "/v1/checkpoints/{checkpoint}", serve: (*Server).changeCheckpoint},
		{method: "POST", path: "/v1/checkpoints/{checkpoint}/compact", serve: (*Server).compactCheckpoint},
		{method: "GET", path: "/v1/checkpoints/{checkpoint}/dependents", serve: (*Server).dependents},
		{method: "DELETE", path: "/v1/checkpoints/{checkpoint}", query: "cascade", serve: (*Server).removeCheckpoint},
		{method: "GET", path: "/v1/checkpoints/{checkpoint}/export", endless: true, serve: (*Server).exportCheckpoint},
	}
}

// sandbox is the one that the path names.
func (s *Server) sandbox(q *request) (*daemon.Sandbox, error) {
	return s.d.Sandbox(q.PathValue("sandbox"))
}

func (s *Server) version(q *request) error {
	return q.answer(http.StatusOK, Version{Release: s.opt.Release, API: API, Protocol: protocol.Version})
}

func (s *Server) openapi(q *request) error {
	q.w.Header().Set("Content-Type", "application/yaml")
	_, err := q.w.Write(openapi)
	return err
}

func (s *Server) events(q *request) error {
	cursor, err := q.offset("cursor")
	if err != nil {
		return err
	}
	follow, err := q.flag("follow")
	if err != nil {
		return err
	}
	if err := s.d.CheckCursor(cursor); err != nil {
		return err
	}
	st := q.stream()
	err = s.d.Events(q.Context(), cursor, follow, func(e daemon.Event) error {
		cursor = e.Cursor
		return st.send(EventElement{Event: &e})
	})
	if err != nil {
		return st.send(EventElement{Error: toWire(err)})
	}
	return st.send(EventElement{End: &EventEnd{cursor}})
}
