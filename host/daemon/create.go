package daemon

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Request says what sandbox is wanted.
type Request struct {
	// Name of its own; empty: it has its id only.
	Name string
	Kind Kind // zero: 256 MiB, 1 CPU
	// From is a checkpoint to start from; empty: a freshly booted machine.
	From   protocol.CheckpointID
	Limits sandbox.Limits
	Seed   []byte
	// Progress is told what takes long; may be nil.
	Progress func(string)
}

var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckRef says whether ref can be the id or the name of a sandbox.
func CheckRef(ref string) error {
	if _, err := protocol.ParseSandboxID(ref); err == nil || validName.MatchString(ref) {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "%q is neither a sandbox id nor a name", clip(ref))
}

func (r *Request) complete() error {
	r.Kind.MemoryBytes = cmp.Or(r.Kind.MemoryBytes, 256<<20)
	r.Kind.CPUs = cmp.Or(r.Kind.CPUs, 1)
	if r.Progress == nil {
		r.Progress = func(string) {}
	}
	switch _, isID := protocol.ParseSandboxID(r.Name); {
	case r.Name != "" && (!validName.MatchString(r.Name) || isID == nil):
		return protocol.Errorf(protocol.CodeInvalidArgument, "name %q: want up to 63 characters a-z, 0-9, '.', '_', '-', and not an id", clip(r.Name))
	case r.Kind.MemoryBytes < 128<<20 || r.Kind.MemoryBytes%(1<<20) != 0 || r.Kind.MemoryBytes > 1<<40:
		return protocol.Errorf(protocol.CodeInvalidArgument, "%d bytes of memory: want at least 128 MiB, in whole MiB", r.Kind.MemoryBytes)
	case r.Kind.CPUs < 1 || r.Kind.CPUs > 64:
		return protocol.Errorf(protocol.CodeInvalidArgument, "%d CPUs: want 1 to 64", r.Kind.CPUs)
	}
	l := r.Limits
	if l.Depth < 0 || l.Width < 0 || l.Live < 0 || l.Memory < 0 || l.Disk < 0 || l.LLMCalls < 0 || l.LLMTokens < 0 || l.LLMCost < 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "limits are not negative")
	}
	return nil
}

// Create starts a sandbox without a program.
func (d *Daemon) Create(ctx context.Context, r Request) (*Sandbox, error) {
	if err := r.complete(); err != nil {
		return nil, err
	}
	s, err := d.admit(r)
	if err != nil {
		return nil, err
	}
	release, err := s.take(ctx)
	if err != nil {
		return nil, errors.Join(err, d.forget(s))
	}
	defer release()
	if err := s.start(ctx, r); err != nil {
		return nil, errors.Join(err, d.forget(s))
	}
	d.emit(Event{Kind: EventCreated, Sandbox: s.id})
	return s, nil
}

// admit reserves the name and the place of a new sandbox.
func (d *Daemon) admit(r Request) (*Sandbox, error) {
	s := d.newSandbox(protocol.NewSandboxID())
	s.kind = kindRecord{Kind: r.Kind, Name: r.Name, From: r.From}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errDown
	}
	if id, ok := d.names[r.Name]; ok && r.Name != "" {
		return nil, protocol.Errorf(protocol.CodeBusy, "sandbox %s has the name %q", id, r.Name)
	}
	if n := len(d.sandboxes); n >= d.options.Limits.Sandboxes {
		e := protocol.Errorf(protocol.CodeOverBudget, "the host has %d sandboxes, and its limit is %d", n, d.options.Limits.Sandboxes)
		return nil, e.With("budget", "sandboxes").With("limit", d.options.Limits.Sandboxes).With("used", n)
	}
	d.sandboxes[s.id] = s
	if r.Name != "" {
		d.names[r.Name] = s.id
	}
	return s, nil
}

func (s *Sandbox) start(ctx context.Context, r Request) error {
	machines, err := s.d.machines(ctx, r.Kind, r.Progress)
	if err != nil {
		return err
	}
	spec := sandbox.Spec{Template: r.From, MemoryBytes: r.Kind.MemoryBytes, Limits: r.Limits, Seed: r.Seed}
	if r.From != "" {
		if err := s.d.takeIn(ctx, machines, r.From); err != nil {
			return err
		}
	}
	if spec.Template == "" {
		if spec.Template, err = machines.Template(ctx, r.Progress); err != nil {
			return err
		}
	}
	if err := s.put("daemon.kind", tableKind, onlyKey, s.kind); err != nil {
		return err
	}
	return s.bring(ctx, r.From, func(ctx context.Context, deps sandbox.Deps) (*sandbox.Sandbox, error) {
		return sandbox.Start(ctx, deps, s.id, spec)
	})
}

// forget takes a sandbox out of the lists and removes what it has on disk.
func (d *Daemon) forget(s *Sandbox) error {
	err := errors.Join(d.files.Journal.Remove(s.id), os.RemoveAll(filepath.Join(d.files.Logs(), string(s.id))))
	if err != nil {
		return err // it stays listed
	}
	s.mu.Lock()
	s.removed = true
	name := s.kind.Name
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sandboxes, s.id)
	if d.names[name] == s.id {
		delete(d.names, name)
	}
	return nil
}

// Remove ends a sandbox and removes it with its checkpoints and logs. One that
// has machines is removed with force only.
func (s *Sandbox) Remove(ctx context.Context, force bool) error {
	release, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	sb, _, err := s.running()
	switch {
	case err == nil && !force:
		return protocol.Errorf(protocol.CodeBusy, "sandbox %s is running; stop it first, or remove it with force", s.id)
	case err == nil:
		if err := sb.End(nil); err != nil {
			return err
		}
		s.over(sb)
	case protocol.CodeOf(err) == protocol.CodeNotFound:
		return err
	}
	if err := s.d.removeCheckpoints(ctx, s); err != nil {
		return err
	}
	if err := s.d.forget(s); err != nil {
		return err
	}
	s.d.emit(Event{Kind: EventRemoved, Sandbox: s.id})
	return nil
}
