package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// What is branched.
const (
	copies    = 16
	branchRAM = 512 // MiB
	dataMiB   = 300
)

func (l *lab) spec(dir string, mib int64) vmm.Spec {
	return vmm.Spec{Dir: dir, UID: -1, GID: -1, MemoryBytes: mib << 20, CPUs: 1, Kernel: l.boot.Kernel, Initrd: l.boot.Initrd,
		Rootfs: l.boot.Rootfs, Cmdline: l.boot.Cmdline}
}

// measureBranch compares branch(16) with other ways to have 16 machines.
func measureBranch(ctx context.Context, l *lab, r *report) error {
	bare, hashed, err := l.branches(ctx, r)
	if err != nil {
		return err
	}
	t := r.table("Sixteen machines otherwise", fmt.Sprintf("Wall time until all %d answer, by how many are started at once. Guest of %d MiB.", copies, branchRAM), "at once", "cold boots", "QEMU's migration file")
	image, err := l.migrationFile(ctx)
	if err != nil {
		return err
	}
	parallel := []int{1, 2, 4, 8, 16}
	if l.quick {
		parallel = []int{2, 4}
	}
	var bestBoot, bestRestore time.Duration
	bestAt := 0
	for _, p := range parallel {
		boot, err := l.sixteen(ctx, p, func(ctx context.Context) (*plain, error) { return l.coldBoot(ctx) })
		if err != nil {
			return err
		}
		restore, err := l.sixteen(ctx, p, func(ctx context.Context) (*plain, error) { return image.restore(ctx, l, "plain") })
		if err != nil {
			return err
		}
		t.add(strconv.Itoa(p), millis(boot), millis(restore))
		l.say("%d at once: boots %s, restores %s", p, millis(boot), millis(restore))
		if bestBoot == 0 || boot < bestBoot {
			bestBoot = boot
		}
		if bestRestore == 0 || restore < bestRestore {
			bestRestore, bestAt = restore, p
		}
	}
	restoreHash, err := l.sixteen(ctx, bestAt, func(ctx context.Context) (*plain, error) { return image.restore(ctx, l, "hash") })
	if err != nil {
		return err
	}
	name := fmt.Sprintf("branch(%d) until all answer, %d MiB of data", copies, dataMiB)
	ratio := ms(bestBoot) / ms(bare)
	r.figure(figure{name: name, measured: millis(bare), baseline: fmt.Sprintf("%s for %d cold boots", millis(bestBoot), copies), ratio: times(ratio), target: "8x", met: met(ratio >= 8)})
	ratio = ms(bestRestore) / ms(bare)
	r.figure(figure{name: name, measured: millis(bare), baseline: fmt.Sprintf("%s for %d restores by QEMU", millis(bestRestore), copies), ratio: times(ratio), target: "4x", met: met(ratio >= 4)})
	ratio = ms(restoreHash) / ms(hashed)
	r.figure(figure{name: name + ", each with a hash over it", measured: millis(hashed), baseline: fmt.Sprintf("%s for %d restores by QEMU with the hash", millis(restoreHash), copies), ratio: times(ratio), target: "4x", met: met(ratio >= 4)})
	return nil
}

// branches branches in a sandbox: some times without the hash, once with it.
func (l *lab) branches(ctx context.Context, r *report) (plain, hashed time.Duration, err error) {
	b, err := l.open(ctx, branchRAM, sandbox.Limits{Live: copies + 2})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	rounds := make([]string, l.pick(3, 1))
	for i := range rounds {
		rounds[i] = "plain"
	}
	rounds = append(rounds, "hash")
	g := b.python(ctx, "branch.py", append([]string{strconv.Itoa(copies), strconv.Itoa(dataMiB)}, rounds...)...)
	var took sample
	for _, how := range rounds {
		_, began, err := g.await(ctx, "branch")
		if err != nil {
			return 0, 0, err
		}
		right, ended, err := g.await(ctx, "answered")
		if err != nil {
			return 0, 0, err
		}
		if right != strconv.Itoa(copies) {
			return 0, 0, fmt.Errorf("%s of %d children answered right", right, copies)
		}
		l.say("branch(%d), %s: %s", copies, how, millis(ended.Sub(began)))
		marks := b.take()
		if how == "hash" {
			hashed = ended.Sub(began)
			break
		}
		took = append(took, ended.Sub(began))
		if len(took) == 1 {
			branchTable(r, marks, began, ended)
		}
	}
	return took.median(), hashed, g.end(ctx)
}

// branchTable tells where the time of one branch went.
func branchTable(r *report, marks []mark, began, ended time.Time) {
	at := map[string]time.Time{} // the first of each name, but for these
	for _, m := range marks {
		if m.at.Before(began) && m.name != "call branch" {
			continue
		}
		if _, ok := at[m.name]; !ok || m.name == "load" || m.name == "call finish" {
			at[m.name] = m.at
		}
	}
	t := r.table("Steps of one branch(16)", "Without the hash. Each step lasts from the end of the one above it.", "step", "took")
	last := began
	for _, s := range []struct{ mark, name string }{
		{"quiesce", "stop the parent"}, {"scan + copy", "copy device state and memory"}, {"publish", "publish the checkpoint"}, {"thaw", "let the parent go on"},
		{"make a new base", "make a new base"}, {"load", "load 16 machines"}, {"call finish", "greet, commit, thaw; all have answered"},
	} {
		if at[s.mark].IsZero() {
			continue
		}
		t.add(s.name, millis(at[s.mark].Sub(last)))
		last = at[s.mark]
	}
	t.add("collect the results", millis(ended.Sub(last)))
}

// sixteen has that many machines made, so many at once, and returns how long
// it took until the last one had answered. All live until then.
func (l *lab) sixteen(ctx context.Context, parallel int, make1 func(context.Context) (*plain, error)) (time.Duration, error) {
	var mu sync.Mutex
	var vms []*plain
	var errs []error
	var all sync.WaitGroup
	slots := make(chan struct{}, parallel)
	began := time.Now()
	for range copies {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			p, err := make1(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			vms = append(vms, p)
		})
	}
	all.Wait()
	took := time.Since(began)
	for _, p := range vms {
		errs = append(errs, p.kill())
	}
	return took, errors.Join(errs...)
}

func (l *lab) coldBoot(ctx context.Context) (*plain, error) {
	p, err := l.startPlain(ctx, branchRAM, "")
	if err != nil {
		return nil, err
	}
	if err := p.hello(ctx); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

// migrated is a machine in QEMU's own format, with the program in it.
type migrated struct {
	path    string
	program protocol.ExecID
	output  uint64 // of the program so far
	hash    string
}

// migrationFile boots a machine, fills it with the same data and saves it.
func (l *lab) migrationFile(ctx context.Context) (m migrated, err error) {
	p, err := l.coldBoot(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, p.kill()) }()
	m = migrated{path: filepath.Join(l.tmp, "migration"), program: protocol.NewExecID()}
	input, w, err := os.Pipe()
	if err != nil {
		return m, err
	}
	defer w.Close()
	g := follow(ctx, plainSource{p}, program.Options{ID: m.program, Stdin: input,
		Spec: &protocol.ExecSpec{Argv: []string{"python3", "-c", source("data.py"), strconv.Itoa(dataMiB)}, Stdin: true}})
	if m.hash, _, err = g.await(ctx, "ready"); err != nil {
		return m, err
	}
	m.output = uint64(len("ready ") + len(m.hash) + 1)
	p.Link.Close()
	began := time.Now()
	if err := p.migrate(ctx, m.path); err != nil {
		return m, err
	}
	l.say("QEMU's migration file took %s", millis(time.Since(began)))
	return m, nil
}

// restore starts a machine from the file and asks its program.
func (m migrated) restore(ctx context.Context, l *lab, how string) (*plain, error) {
	p, err := l.startPlain(ctx, branchRAM, "exec:cat "+m.path)
	if err != nil {
		return nil, err
	}
	err = p.hello(ctx)
	if err == nil {
		err = m.ask(ctx, p, how)
	}
	if err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

func (m migrated) ask(ctx context.Context, p *plain, how string) error {
	g := follow(ctx, plainSource{p}, program.Options{ID: m.program, Stdin: strings.NewReader(how + "\n"),
		From: protocol.ExecOffsets{ID: m.program, Stdout: m.output}})
	got, _, err := g.await(ctx, "answer")
	if err == nil && how == "hash" && got != m.hash {
		err = fmt.Errorf("a restored machine's hash is %s, want %s", got, m.hash)
	}
	return err
}
