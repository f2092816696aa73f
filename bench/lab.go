package main

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/image"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/python"
)

//go:embed programs/*.py
var programs embed.FS

// source is the text of a guest program.
func source(name string) string {
	b, err := programs.ReadFile("programs/" + name)
	if err != nil {
		panic(err) // embedded
	}
	return string(b)
}

// lab is what all sections share.
type lab struct {
	options
	dir    *state.Dir
	driver *qemu.Driver
	boot   machine.Boot
	kernel string
	tmp    string // removed at the end
	began  time.Time
	log    *slog.Logger
}

func openLab(ctx context.Context, o options) (*lab, error) {
	dir, err := state.Open(o.state)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	l := &lab{options: o, dir: dir, driver: qemu.New(qemu.Options{}), began: time.Now(), log: log}
	cache := image.New(image.Options{Dir: image.Dir(dir.Path()), Progress: image.Terminal(os.Stderr)})
	agentd, err := image.FindAgentd()
	if err != nil {
		return nil, err
	}
	kernel, err := cache.Kernel(ctx)
	if err != nil {
		return nil, err
	}
	initrd, digest, err := cache.Initramfs(ctx, kernel, agentd)
	if err != nil {
		return nil, err
	}
	root, err := cache.Builtin(ctx, image.BuiltinOptions{Helper: python.Helper})
	if err != nil {
		return nil, err
	}
	l.kernel = kernel.Release
	l.boot = machine.Boot{Kernel: kernel.Path, KernelDigest: kernel.Digest, Initrd: initrd, InitrdDigest: digest,
		Rootfs: root.Path, RootfsDigest: root.Digest, Cmdline: image.Cmdline}
	l.tmp, err = os.MkdirTemp(dir.Path(), "bench")
	return l, err
}

func (l *lab) close() {
	if err := os.RemoveAll(l.tmp); err != nil {
		l.say("%v", err)
	}
}

// say reports progress.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}

// box is a sandbox on a host of its own.
type box struct {
	*trace
	lab    *lab
	run    *state.Run
	engine *machine.Engine
	store  *machine.Store
	sb     *sandbox.Sandbox
	lines  *program.Lines
	first  program.Line
	took   time.Duration // of sandbox.Start
}

// open starts a sandbox whose machines have so many MiB of RAM.
func (l *lab) open(ctx context.Context, mib int64, limits sandbox.Limits) (*box, error) {
	run, err := l.dir.NewRun()
	if err != nil {
		return nil, err
	}
	b := &box{trace: &trace{}, lab: l, run: run}
	b.engine, err = machine.New(ctx, machine.Options{Driver: tracedDriver{l.driver, b.trace}, Dir: run.Path,
		Cache: l.dir.Templates(), Log: l.log})
	if err != nil {
		return nil, errors.Join(err, run.Remove())
	}
	machines := b.engine.Kind(machine.Kind{Boot: l.boot, MemoryBytes: mib << 20})
	template, err := machines.Template(ctx, func(stage string) { l.say("%s", stage) })
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	first := make(chan program.Line, 1)
	b.lines = program.NewLines(func(line program.Line) {
		if line.Node == "0" {
			first <- line
		}
	})
	id := protocol.NewSandboxID()
	b.store = machines.Checkpoints(id)
	deps := b.deps(sandbox.Deps{Machines: machines, Checkpoints: b.store, Journal: run.Journal.Sandbox(id), Observe: b.lines.Observe, Log: l.log})
	began := time.Now()
	b.sb, err = sandbox.Start(ctx, deps, id, sandbox.Spec{Template: template, MemoryBytes: mib << 20, Limits: limits})
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.took = time.Since(began)
	b.lines.Use(b.sb)
	b.first = <-first
	return b, nil
}

func (b *box) close() error {
	var errs []error
	if b.sb != nil {
		errs = append(errs, b.sb.End(nil))
		b.sb.Close()
	}
	return errors.Join(append(errs, b.engine.Close(), b.run.Remove())...)
}

// line is one line of a program's output and when it came.
type line struct {
	text string
	at   time.Time
}

// guest is a program in the sandbox's first line.
type guest struct {
	lines chan line // closed at its end
	done  chan struct{}
	err   error // of the run, once done
}

// python starts a program of programs/.
func (b *box) python(ctx context.Context, name string, args ...string) *guest {
	return b.start(ctx, append([]string{"python3", "-c", source(name)}, args...)...)
}

func (b *box) start(ctx context.Context, argv ...string) *guest {
	p := protocol.NewExecID()
	return follow(ctx, b.lines.Source(b.first.ID, p), program.Options{ID: p, Spec: &protocol.ExecSpec{Argv: argv}})
}

// follow runs a program, or goes on with one, and takes its output apart.
func follow(ctx context.Context, src program.Source, o program.Options) *guest {
	r, w := io.Pipe()
	g := &guest{lines: make(chan line, 1024), done: make(chan struct{})}
	go func() {
		defer close(g.lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			g.lines <- line{s.Text(), time.Now()}
		}
	}()
	var stderr strings.Builder
	o.Stdout, o.Stderr = w, &stderr
	p := program.New(o)
	go func() {
		defer close(g.done)
		exit, err := p.Follow(ctx, src)
		if err == nil && exit.Status.Code != 0 {
			err = fmt.Errorf("the guest's program ended with %+v: %s", exit.Status, stderr.String())
		}
		g.err = err
		w.Close()
	}()
	return g
}

// await returns the rest of the next line that begins with the word.
func (g *guest) await(ctx context.Context, word string) (string, time.Time, error) {
	for {
		select {
		case l, ok := <-g.lines:
			if !ok {
				<-g.done
				return "", time.Time{}, fmt.Errorf("the guest's program ended without saying %q: %w", word, g.err)
			}
			if rest, ok := strings.CutPrefix(l.text, word); ok {
				return strings.TrimSpace(rest), l.at, nil
			}
		case <-ctx.Done():
			return "", time.Time{}, context.Cause(ctx)
		}
	}
}

// end waits for the program's end.
func (g *guest) end(ctx context.Context) error {
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// buildEcho makes the program that answers on a bare port.
func (l *lab) buildEcho(ctx context.Context) (string, error) {
	path := filepath.Join(l.tmp, "echo")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/ratoon-project/ratoon/bench/echo")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build bench/echo: %w\n%s", err, out)
	}
	return path, nil
}
