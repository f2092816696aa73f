package cli

import (
	"context"
	"os"

	"github.com/ratoon-project/ratoon/host/program"
)

// For tests.
var (
	Escape       = escape
	Line         = line
	Size         = size
	ParseSize    = parseSize
	CompareNodes = compareNodes
	DrawTree     = drawTree
	StatusOf     = statusOf
	RemedyOf     = remedyOf
	Usage        = usage
	Listen       = listen
	Ask          = ask
	NewChildren  = newChildren
	ListenAdmin  = listenAdmin
)

// Sink is the log of one child's stream.
func (c *children) Sink(node, stream string) *prefixed { return c.sink(node, stream, c.out) }

// LogLimit bounds it.
const LogLimit = logLimit

// Passing starts to pass signals on; stop ends it.
func Passing(ctx context.Context) (_ context.Context, signals chan<- os.Signal, to func(*program.Program), stop func()) {
	ctx, i := interruptible(ctx)
	return ctx, i.signals, i.to, i.stop
}
