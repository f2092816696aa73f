package daemon

import (
	"context"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// recover takes the sandbox over from the process before. One that cannot be
// recovered is listed with the reason.
func (s *Sandbox) recover(ctx context.Context) {
	if err := s.tryRecover(ctx); err != nil {
		s.d.log.Error("recover sandbox", "sandbox", s.id, "error", err)
		s.mu.Lock()
		s.broken = protocol.AsError(err)
		s.mu.Unlock()
	}
}

func (s *Sandbox) tryRecover(ctx context.Context) error {
	if _, err := s.get(tableKind, onlyKey, &s.kind); err != nil {
		return err
	}
	if _, err := sandbox.ReadTree(s.journal, s.id, nil); protocol.CodeOf(err) == protocol.CodeNotFound {
		return s.d.forget(s) // it never came to its first machine
	}
	s.d.mu.Lock()
	if s.kind.Name != "" {
		s.d.names[s.kind.Name] = s.id
	}
	s.d.mu.Unlock()
	rest, err := sandbox.AtRest(s.journal, s.id)
	if err != nil || rest {
		return err
	}
	return s.bring(ctx, s.kind.From, func(ctx context.Context, deps sandbox.Deps) (*sandbox.Sandbox, error) {
		return sandbox.Recover(ctx, deps, s.id)
	})
}

// down ends this process's part in the sandbox.
func (s *Sandbox) down() {
	if sb, _, err := s.running(); err == nil {
		sb.Close()
	}
}
