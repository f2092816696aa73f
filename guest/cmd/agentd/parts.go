package main

import (
	"context"

	"github.com/ratoon-project/ratoon/guest/agent"
	"github.com/ratoon-project/ratoon/guest/exec"
	"github.com/ratoon-project/ratoon/guest/files"
	"github.com/ratoon-project/ratoon/guest/fork"
	"github.com/ratoon-project/ratoon/protocol"
)

// execServer lets the agent serve programs.
type execServer struct{ *exec.Manager }

var _ agent.Execs = execServer{}

func (e execServer) Serve(ctx context.Context, open protocol.ExecOpen, s agent.Stream) {
	e.Manager.Serve(ctx, open, s)
}

// execPart stops the agent's work for programs.
type execPart struct{ m *exec.Manager }

var _ fork.Participant = execPart{}

func (execPart) Name() string { return "exec" }

// Prepare waits for programs that are just being started: one that is frozen
// between fork and exec would hold the worker's locks.
func (p execPart) Prepare(ctx context.Context) error { return p.m.Quiesce(ctx) }

// Drain moves what frozen programs have written into memory that the host can
// ask for.
func (p execPart) Drain(ctx context.Context) (protocol.Position, error) {
	p.m.Pump(ctx)
	return protocol.Position{}, nil
}

func (p execPart) Resume() { p.m.Resume() }

// filesServer lets the agent serve files.
type filesServer struct{ *files.Server }

var _ agent.Files = filesServer{}

func (f filesServer) Serve(ctx context.Context, req protocol.FileRequest, s agent.Stream) {
	f.Server.Serve(ctx, req, s)
}

// filesPart stops the agent's own work on files.
type filesPart struct{ s *files.Server }

var _ fork.Participant = filesPart{}

func (filesPart) Name() string { return "files" }

func (p filesPart) Prepare(ctx context.Context) error { return p.s.Quiesce(ctx) }

func (p filesPart) Drain(context.Context) (protocol.Position, error) {
	return protocol.Position{}, nil
}

func (p filesPart) Resume() { p.s.Resume() }
