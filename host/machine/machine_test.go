package machine_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// driver makes machines that are nothing.
type driver struct {
	info  vmm.Info
	fail  atomic.Bool // Load
	stuck atomic.Bool // Resume
	loads atomic.Int64
	alive atomic.Int64

	mu     sync.Mutex // guards what follows
	loaded []vmm.Spec
}

// specs are what was loaded.
func (d *driver) specs() []vmm.Spec {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.loaded)
}

func (d *driver) Info(context.Context) (vmm.Info, error) { return d.info, nil }

func (d *driver) Boot(context.Context, vmm.Spec, string) (vmm.VM, error) {
	return nil, errors.New("no boot")
}

func (d *driver) Adopt(context.Context, vmm.Spec, vmm.Process) (vmm.VM, error) {
	return nil, os.ErrProcessDone
}

func (d *driver) Load(_ context.Context, s vmm.Spec, i vmm.Image) (vmm.VM, error) {
	d.loads.Add(1)
	d.mu.Lock()
	d.loaded = append(d.loaded, s)
	d.mu.Unlock()
	if d.fail.Load() {
		return nil, errors.New("no load")
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "socket"), nil, 0o600); err != nil {
		return nil, err
	}
	d.alive.Add(1)
	return &vm{driver: d, done: make(chan struct{})}, nil
}

type vm struct {
	vmm.VM // what the tests do not use
	driver *driver
	once   sync.Once
	done   chan struct{}
}

func (v *vm) PID() int              { return os.Getpid() }
func (v *vm) StartTime() uint64     { return 1 }
func (v *vm) Process() vmm.Process  { return vmm.Process{PID: v.PID(), StartTime: 1} }
func (v *vm) Carrier() link.Carrier { return nil }

func (v *vm) Resume(context.Context) error {
	if v.driver.stuck.Load() {
		return errors.New("no resume")
	}
	return nil
}

func (v *vm) Kill(context.Context) error {
	v.once.Do(func() {
		v.driver.alive.Add(-1)
		close(v.done)
	})
	return nil
}

const (
	base = protocol.BaseID("ba-aaaaaaaaaaaaaaaa")
	from = protocol.CheckpointID("cp-bbbbbbbbbbbbbbbb")
	// owner is the sandbox that has it.
	owner = protocol.SandboxID("sb-dddddddddddddddd")
)

// engine has one base and a checkpoint of 64 KiB on it.
func engine(t *testing.T, d vmm.Driver) (*machine.Machines, string) {
	t.Helper()
	dir := t.TempDir()
	store, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := store.BeginBase(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(b.RAMPath(), make([]byte, 1<<20), 0o600), b.Publish(t.Context(), checkpoint.BaseManifest{ID: base})); err != nil {
		t.Fatal(err)
	}
	p, err := store.Begin(from)
	if err != nil {
		t.Fatal(err)
	}
	m := checkpoint.Manifest{ID: from, Class: checkpoint.ClassNamed, Created: time.Now(), Sandbox: owner, Timeline: protocol.NewTimelineID(),
		Line: protocol.NewLineID(), Node: "0", Freeze: 2, Base: base}
	if err := errors.Join(os.WriteFile(p.PagesPath(), nil, 0o600), os.WriteFile(p.StatePath(), []byte("state"), 0o600), p.Publish(t.Context(), m)); err != nil {
		t.Fatal(err)
	}
	return open(t, machine.Options{Driver: d, Dir: dir}).Kind(machine.Kind{MemoryBytes: 1 << 20}), dir
}

func open(t *testing.T, o machine.Options) *machine.Engine {
	t.Helper()
	if o.Cache == "" {
		o.Cache = filepath.Join(o.Dir, "cache")
	}
	e, err := machine.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func left(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "vm", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// Machines share a base while they live; it cannot be removed meanwhile.
func TestBaseShared(t *testing.T) {
	t.Parallel()
	d := &driver{}
	e, dir := engine(t, d)
	var all sync.WaitGroup
	vms := make([]sandbox.VM, 4)
	for i := range vms {
		all.Go(func() {
			v, err := e.Load(t.Context(), sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: from, Siblings: len(vms)})
			if err != nil {
				t.Error(err)
				return
			}
			vms[i] = v
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if diff := cmp.Diff(map[string]int{string(base): 4}, e.Users()); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	for i, v := range vms {
		all.Go(func() { // twice at once, as a death and an end are
			if err := v.Kill(); err != nil {
				t.Errorf("kill %d: %v", i, err)
			}
		})
		if err := v.Kill(); err != nil {
			t.Errorf("kill %d: %v", i, err)
		}
	}
	all.Wait()
	if len(e.Users()) > 0 || d.alive.Load() > 0 || len(left(t, dir)) > 0 {
		t.Errorf("after all were killed: users %v, %d alive, left %v", e.Users(), d.alive.Load(), left(t, dir))
	}
}

// A load that fails leaves nothing.
func TestLoadFails(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		set  func(*driver)
		req  sandbox.LoadRequest
		code protocol.Code
	}{
		{"load", func(d *driver) { d.fail.Store(true) }, sandbox.LoadRequest{Checkpoint: from}, protocol.CodeInternal},
		{"resume", func(d *driver) { d.stuck.Store(true) }, sandbox.LoadRequest{Checkpoint: from}, protocol.CodeInternal},
		{"unknown", func(*driver) {}, sandbox.LoadRequest{Checkpoint: "cp-cccccccccccccccc"}, protocol.CodeUnknownCheckpoint},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := &driver{}
			e, dir := engine(t, d)
			tc.set(d)
			tc.req.VM = protocol.NewVMID()
			if _, err := e.Load(t.Context(), tc.req); err == nil || protocol.CodeOf(err) != tc.code {
				t.Errorf("got %v, want %s", err, tc.code)
			}
			if len(e.Users()) > 0 || d.alive.Load() > 0 || len(left(t, dir)) > 0 {
				t.Errorf("left: users %v, %d machines, %v", e.Users(), d.alive.Load(), left(t, dir))
			}
		})
	}
}

// One new base is made for all who ask at once, and one that was swept is made
// again.
func TestDerive(t *testing.T) {
	t.Parallel()
	d := &driver{}
	e, _ := engine(t, d)
	load := func(ctx context.Context) (sandbox.VM, error) {
		return e.Load(ctx, sandbox.LoadRequest{VM: protocol.NewVMID(), Checkpoint: from, Rebase: true})
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			v, err := load(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if users := e.Users(); len(users) == 0 || users[string(base)] > 4 {
				t.Errorf("users: %v", users)
			}
			if err := v.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for range 2 {
		v, err := load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := e.Checkpoints(owner).Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := load(ctx); err == nil {
		t.Error("a cancelled load succeeds")
	}
	if len(e.Users()) > 0 {
		t.Errorf("users left: %v", e.Users())
	}
}

// The template's key changes with everything it depends on, and with nothing
// else.
func TestKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := func(change func(*machine.Kind, *driver)) string {
		t.Helper()
		d := &driver{info: vmm.Info{Name: "n", Version: "v", Accel: "a", CPUModel: "c", Machine: "m", Cmdline: "l"}}
		k := machine.Kind{MemoryBytes: 1 << 28, CPUs: 1, Boot: machine.Boot{Kernel: "k", KernelDigest: "kd", Initrd: "i", InitrdDigest: "id", Rootfs: "r", RootfsDigest: "rd", Cmdline: "c"}}
		change(&k, d)
		e, err := machine.New(t.Context(), machine.Options{Driver: d, Dir: filepath.Join(dir, "run"), Cache: filepath.Join(dir, "cache")})
		if err != nil {
			t.Fatal(err)
		}
		return e.Kind(k).Key()
	}
	seen := map[string]string{key(func(*machine.Kind, *driver) {}): "nothing"}
	for name, change := range map[string]func(*machine.Kind, *driver){
		"memory":       func(o *machine.Kind, _ *driver) { o.MemoryBytes *= 2 },
		"cpus":         func(o *machine.Kind, _ *driver) { o.CPUs++ },
		"kernel":       func(o *machine.Kind, _ *driver) { o.Boot.KernelDigest += "x" },
		"initrd":       func(o *machine.Kind, _ *driver) { o.Boot.InitrdDigest += "x" },
		"image":        func(o *machine.Kind, _ *driver) { o.Boot.RootfsDigest += "x" },
		"cmdline":      func(o *machine.Kind, _ *driver) { o.Boot.Cmdline += "x" },
		"vmm":          func(_ *machine.Kind, d *driver) { d.info.Name += "x" },
		"vmm version":  func(_ *machine.Kind, d *driver) { d.info.Version += "x" },
		"accelerator":  func(_ *machine.Kind, d *driver) { d.info.Accel += "x" },
		"cpu":          func(_ *machine.Kind, d *driver) { d.info.CPUModel += "x" },
		"devices":      func(_ *machine.Kind, d *driver) { d.info.Machine += "x" },
		"vmm's line":   func(_ *machine.Kind, d *driver) { d.info.Cmdline += "x" },
		"shifted text": func(o *machine.Kind, _ *driver) { o.Boot.KernelDigest, o.Boot.InitrdDigest = "kdi", "d" },
	} {
		k := key(change)
		if same, ok := seen[k]; ok {
			t.Errorf("a change of %s has the key of %s", name, same)
		}
		seen[k] = name
	}
	moved := key(func(o *machine.Kind, _ *driver) { o.Boot.Kernel, o.Boot.Initrd, o.Boot.Rootfs = "x", "y", "z" })
	if seen[moved] != "nothing" {
		t.Error("the key depends on where files lie")
	}
}

func TestFreeUID(t *testing.T) {
	t.Parallel()
	used, err := machine.UsedUIDs()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(used[os.Getuid()], os.Getpid()) {
		t.Errorf("the user of this process, %d, is free", os.Getuid())
	}
	id := protocol.NewVMID()
	uid, err := machine.FreeUID(id, nil)
	if err != nil || uid < machine.FirstUID || uid >= machine.FirstUID+machine.CountUID {
		t.Fatalf("got %d, %v", uid, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can run a process as that user: run as root")
	}
	cmd := exec.Command("sleep", "1000")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if again, err := machine.FreeUID(id, nil); err != nil || again == uid {
		t.Errorf("%d, which runs a process, was given again (%v)", again, err)
	}
	if other, err := machine.FreeUID(protocol.NewVMID(), map[int]bool{}); err != nil || other == uid {
		t.Errorf("another machine got %d, %v", other, err)
	}
	next, err := machine.FreeUID(id, map[int]bool{uid + 1: true})
	if err != nil || next == uid || next == uid+1 {
		t.Errorf("got %d, which is taken (%v)", next, err)
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := machine.LockFile(t.Context(), path, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := machine.TryLock(path, unix.LOCK_SH); other != nil || err != nil {
		t.Errorf("a second one has the lock (%v)", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := machine.LockFile(ctx, path, unix.LOCK_EX); !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
	got := make(chan error, 1)
	go func() {
		unlock, err := machine.LockFile(t.Context(), path, unix.LOCK_SH)
		if err == nil {
			defer unlock()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	if _, err := machine.LockFile(t.Context(), filepath.Join(path, "below"), unix.LOCK_EX); err == nil {
		t.Error("locks below a file")
	}
}
