package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/protocol"
)

// logLimit is how much output of one stream of one child is kept.
const logLimit = 16 << 20

// children keeps the output of all lines but the first: one file per node and
// stream, and with --follow also on the terminal.
type children struct {
	dir      string
	show     bool
	out, err io.Writer
	lines    *program.Lines
	ctx      context.Context
	cancel   context.CancelFunc
	all      sync.WaitGroup
	mu       sync.Mutex // one line at a time on the terminal
}

func newChildren(dir string, show bool, out, err io.Writer) *children {
	c := &children{dir: dir, show: show, out: out, err: err}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// start follows the programs of a new line until it ends. It does not block.
func (c *children) start(l program.Line) {
	for _, e := range l.Execs {
		c.all.Go(func() { c.follow(l, e) })
	}
}

// stop waits for those that follow; they end with their lines, or now.
func (c *children) stop() {
	c.cancel()
	c.all.Wait()
}

func (c *children) follow(l program.Line, e protocol.ExecOffsets) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		fmt.Fprintln(c.err, "ratoon: keep the output of a child:", err)
		return
	}
	stdout, stderr := c.sink(l.Node, "stdout", c.out), c.sink(l.Node, "stderr", c.err)
	defer stdout.Close()
	defer stderr.Close()
	p := program.New(program.Options{ID: e.ID, Stdout: stdout, Stderr: stderr, From: e})
	p.Follow(c.ctx, c.lines.Source(l.ID, e.ID)) // ends with the line
}

func (c *children) sink(node, stream string, terminal io.Writer) *prefixed {
	p := &prefixed{mu: &c.mu, prefix: node + "| "}
	f, err := os.OpenFile(filepath.Join(c.dir, node+"."+stream), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(c.err, "ratoon: keep the output of a child:", err)
	}
	p.file = f
	if c.show {
		p.terminal = terminal
	}
	return p
}

// prefixed writes to a bounded file and, in whole lines, to a terminal.
type prefixed struct {
	file     *os.File
	written  int64
	mu       *sync.Mutex
	terminal io.Writer
	prefix   string
	rest     []byte
}

func (p *prefixed) Write(b []byte) (int, error) {
	if p.file != nil && p.written < logLimit {
		n, _ := p.file.Write(b[:min(int64(len(b)), logLimit-p.written)]) // a full disk must not stop the child
		p.written += int64(n)
	}
	if p.terminal == nil {
		return len(b), nil
	}
	p.rest = append(p.rest, b...)
	for {
		line, rest, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok && len(p.rest) < 4096 {
			return len(b), nil
		}
		p.show(line)
		p.rest = rest
	}
}

func (p *prefixed) show(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.terminal, "%s%s\n", p.prefix, escape(string(line)))
}

// Close shows what is left of the last line.
func (p *prefixed) Close() error {
	if p.terminal != nil && len(p.rest) > 0 {
		p.show(p.rest)
	}
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}
