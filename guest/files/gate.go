package files

import (
	"context"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// gate lets steps on files through, except while it is held.
type gate struct {
	mu      sync.Mutex
	held    bool
	running int           // operations
	inside  int           // steps under way
	changed chan struct{} // closed at the next change of held or inside; nil unless awaited
}

// begin admits an operation.
func (g *gate) begin() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.held:
		return protocol.Errorf(protocol.CodeBusy, "no file operation can begin during a capture")
	case g.running == maxOperations:
		return protocol.Errorf(protocol.CodeBusy, "%d file operations are under way", maxOperations).With("limit", maxOperations)
	}
	g.running++
	return nil
}

func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
}

// enter waits until the gate is not held and begins a step.
func (g *gate) enter(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.await(ctx, func() bool { return !g.held }); err != nil {
		return err
	}
	g.inside++
	return nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.wake()
}

func (g *gate) hold(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = true
	err := g.await(ctx, func() bool { return g.inside == 0 })
	if err != nil {
		g.held = false
		g.wake()
		return protocol.Errorf(protocol.CodePrepareFailed, "a file operation did not pause: %v", err)
	}
	return nil
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = false
	g.wake()
}

// await waits for ok, with mu given up meanwhile.
func (g *gate) await(ctx context.Context, ok func() bool) error {
	for !ok() {
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		g.mu.Lock()
		if ctx.Err() != nil && !ok() {
			return context.Cause(ctx)
		}
	}
	return ctx.Err()
}

func (g *gate) wake() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}
