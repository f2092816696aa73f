package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

const (
	// recipe changes when templates are made in another way.
	recipe = 1
	// bootWait bounds the boot of a template, which emulation on a busy host
	// can make slow.
	bootWait = 3 * time.Minute
	// templateFreeze is the freeze in which a template was captured.
	templateFreeze protocol.Freeze = 1
)

// warm is run in a template once, so that the files every agent needs are in
// the guest's page cache. What an image lacks is left out.
const warm = `python3 -c 'import ratoon, json, random, re, subprocess, threading, asyncio, tempfile, uuid' 2>/dev/null
git --version >/dev/null 2>&1
/usr/local/bin/agentd call --help >/dev/null 2>&1
true`

// A template is a base with device state. The coordinator knows it as the
// checkpoint with the same letters.
func checkpointOf(id protocol.BaseID) protocol.CheckpointID {
	return protocol.CheckpointID("cp-" + strings.TrimPrefix(string(id), "ba-"))
}

func (e *Engine) templateBase(id protocol.CheckpointID) (protocol.BaseID, bool) {
	base := protocol.BaseID("ba-" + strings.TrimPrefix(string(id), "cp-"))
	m, err := e.store.Base(base)
	return base, err == nil && m.From.Template != ""
}

func (e *Engine) templateCheckpoint(id protocol.BaseID) (sandbox.Checkpoint, error) {
	m, err := e.store.Base(id)
	if err != nil {
		return sandbox.Checkpoint{}, err
	}
	return sandbox.Checkpoint{ID: checkpointOf(id), Class: sandbox.ClassNamed, Label: "template", Created: m.Created, Freeze: templateFreeze, Durable: m.Durable}, nil
}

func (e *Engine) templateSource(id protocol.BaseID) (source, error) {
	files, err := e.store.BaseFiles(id)
	if err != nil {
		return source{}, err
	}
	b, err := e.openBase(id)
	return source{base: b, id: id, state: files.State}, err
}

// key names everything that a template depends on.
func (m *Machines) key() string {
	b := m.kind.Boot
	text, err := json.Marshal([]any{recipe, protocol.Version, m.info, m.kind.MemoryBytes, m.kind.CPUs, b.KernelDigest, b.InitrdDigest, b.RootfsDigest, b.Cmdline, warm})
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Template finds the template of this kind of machines, or boots one, and
// takes it into the run directory. progress is told when a boot begins.
func (m *Machines) Template(ctx context.Context, progress func(string)) (protocol.CheckpointID, error) {
	key := m.key()
	unlock, err := lockFile(ctx, filepath.Join(m.templates.Dir(), key+".lock"), unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer unlock()
	id, err := m.findTemplate(key)
	if err != nil {
		return "", err
	}
	if id == "" {
		progress(fmt.Sprintf("booting a template machine (%d MiB, %s, once for this image)", m.kind.MemoryBytes>>20, m.info.Accel))
		if id, err = m.buildTemplate(ctx, key); err != nil {
			return "", fmt.Errorf("build template: %w", err)
		}
	}
	if err := m.store.ImportBase(ctx, m.templates, id); err != nil {
		return "", fmt.Errorf("take template into the run directory: %w", err)
	}
	if err := errors.Join(use(m.templates, id), use(m.store, id)); err != nil {
		return "", fmt.Errorf("note the use of a template: %w", err)
	}
	return checkpointOf(id), nil
}

// findTemplate returns "" when there is none that can be used.
func (e *Engine) findTemplate(key string) (protocol.BaseID, error) {
	if err := sweepTemplates(e.templates); err != nil {
		return "", err
	}
	list, damaged, err := e.templates.Bases()
	for _, d := range damaged {
		e.log.Warn("damaged template", "base", d.ID, "error", d.Err)
	}
	for _, m := range list {
		if m.From.Template != key {
			continue
		}
		if err := e.templates.CheckBase(m.ID); err != nil {
			e.log.Warn("template cannot be used", "base", m.ID, "error", err)
			if err := e.templates.RemoveBase(m.ID); err != nil {
				return "", err
			}
			continue
		}
		return m.ID, nil
	}
	return "", err
}

// building is locked, shared, by all who build templates of any key.
const building = "building.lock"

// sweepTemplates removes what killed builders have left, unless some process
// is building one now: its files look the same.
func sweepTemplates(cache *checkpoint.Store) error {
	unlock, err := tryLock(filepath.Join(cache.Dir(), building), unix.LOCK_EX)
	if unlock == nil {
		return err
	}
	defer unlock()
	_, err = cache.Sweep(nil)
	return err
}

func (m *Machines) buildTemplate(ctx context.Context, key string) (protocol.BaseID, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootWait, protocol.Errorf(protocol.CodeTimeout, "the template was not ready within %v", bootWait))
	defer cancel()
	unlock, err := lockFile(ctx, filepath.Join(m.templates.Dir(), building), unix.LOCK_SH)
	if err != nil {
		return "", err
	}
	defer unlock()
	id := protocol.NewBaseID()
	p, err := m.templates.BeginBase(id)
	if err != nil {
		return "", err
	}
	defer p.Discard()
	rec := m.record(protocol.NewVMID())
	rec.Template = true
	r, err := m.makeRoom(rec)
	if err != nil {
		return "", err
	}
	vm, err := m.driver.Boot(ctx, r.spec(m.kind), p.RAMPath())
	if err != nil {
		return "", errors.Join(err, r.remove(context.WithoutCancel(ctx)))
	}
	v := &VM{machines: m, room: r, machine: vm}
	kill := v.end
	if err := r.complete(vm.Process(), memory.Name{}); err != nil {
		return "", errors.Join(err, kill())
	}
	l, err := m.ready(ctx, vm)
	if l != nil {
		defer l.Close() // not before the machine is gone, which is paused
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("%w; the guest's console ends: %.2000q", err, vm.ConsoleTail()), kill())
	}
	if err := errors.Join(vm.Pause(ctx), vm.SaveState(ctx, p.StatePath())); err != nil {
		return "", errors.Join(err, kill())
	}
	if err := kill(); err != nil {
		return "", err
	}
	if err := memory.Protect(p.RAMPath()); err != nil {
		return "", err
	}
	if err := p.Publish(ctx, checkpoint.BaseManifest{ID: id, From: checkpoint.Origin{Template: key}}); err != nil {
		return "", err
	}
	return id, m.templates.MakeBaseDurable(ctx, id)
}

// ready waits for the booted guest, warms it and quiesces it. The link is the
// caller's to close, also after an error.
func (e *Engine) ready(ctx context.Context, vm vmm.VM) (*link.Link, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-vm.Done():
			cancel(vm.Err())
		case <-ctx.Done():
		}
	})
	defer watching.Wait()
	defer cancel(nil)
	l, err := link.Connect(ctx, vm.Carrier(), link.Options{Log: e.log})
	if err != nil {
		return nil, fmt.Errorf("wait for the guest's agent: %w", err)
	}
	m, err := l.Receive(ctx)
	if err != nil {
		return l, fmt.Errorf("read hello: %w", err)
	}
	hello, ok := m.(*protocol.Hello)
	if !ok || hello.Version != protocol.Version {
		return l, protocol.Errorf(protocol.CodeVersionMismatch, "the guest's first message is %s %+v, want hello of protocol %d", m.Type(), m, protocol.Version)
	}
	p := program.New(program.Options{Spec: &protocol.ExecSpec{Argv: []string{"/bin/sh", "-c", warm}, Dir: "/"}})
	if _, err := p.Follow(ctx, booted{l}); err != nil {
		return l, fmt.Errorf("warm: %w", err)
	}
	return l, quiesce(ctx, l)
}

// booted is the one timeline of a template.
type booted struct{ *link.Link }

func (booted) Places(context.Context) ([]program.Place, error) { return make([]program.Place, 1), nil }

func (b booted) OpenStream(ctx context.Context, _ protocol.TimelineID, o protocol.Open) (program.Stream, error) {
	return b.Link.OpenStream(ctx, o)
}

// quiesce stops a guest that nobody else talks to. The link stays open: the
// machine is paused next.
func quiesce(ctx context.Context, l *link.Link) error {
	if err := l.Send(ctx, &protocol.Prepare{Freeze: templateFreeze}); err != nil {
		return err
	}
	for {
		m, err := l.Receive(ctx)
		if err != nil {
			return fmt.Errorf("quiesce: %w", err)
		}
		switch m := m.(type) {
		case *protocol.Drained:
			// It may end the link before Send returns; Receive tells.
			l.Send(ctx, &protocol.AckPosition{Freeze: m.Freeze, Position: m.Position})
		case *protocol.PrepareFailed:
			return fmt.Errorf("quiesce: %w", m.Error)
		case *protocol.Quiesced:
			return l.AwaitEnd(ctx)
		}
	}
}

// lockFile waits for a lock, shared or exclusive, which ends with the process.
func lockFile(ctx context.Context, path string, how int) (unlock func(), err error) {
	for {
		unlock, err := tryLock(path, how)
		if unlock != nil || err != nil {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tryLock returns nil and no error when another one has the lock.
func tryLock(path string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return func() { f.Close() }, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
