package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/ratoon-project/ratoon/host/admin"
	"github.com/ratoon-project/ratoon/host/config"
	"github.com/ratoon-project/ratoon/host/daemon"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/host/state"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/protocol"
)

// shutdownWait is how long requests may take to end when ratoond does.
const shutdownWait = 10 * time.Second

// answerWait is how long one that serves the socket already may take to say so.
const answerWait = 5 * time.Second

// DaemonMain is the whole of the ratoond binary.
func DaemonMain(ctx context.Context) int {
	return run(ctx, "ratoond", newDaemon, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
}

// serving are the options of ratoond.
type serving struct {
	*global
	file string
	set  config.Config // by flags
}

func newDaemon(g *global) *cobra.Command {
	o := &serving{global: g}
	cmd := &cobra.Command{
		Use:   "ratoond",
		Short: "Serve sandboxes that outlive one program",
		Long: `Ratoond keeps sandboxes: ratoon sandbox, exec, snapshot and the others talk to it
on its socket. It says "ready" on standard error, and to systemd, when it can be
talked to. SIGTERM ends it.

` + exitHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          arguments(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.serve(cmd.Context()) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	f := cmd.PersistentFlags()
	f.StringVar(&o.file, "config", config.DefaultPath, "configuration file")
	f.StringVar(&o.set.StateDir, "state-dir", "", "where everything is kept")
	f.StringVar(&o.set.Socket, "socket", "", "the admin socket")
	f.StringVar(&o.set.Group, "group", "", "group that may use the socket")
	f.StringVar(&o.set.LLM, "llm", "", "who answers llm_query: openai[:MODEL], echo, cassette:FILE, scripted:FILE")
	f.StringVar(&o.set.LogLevel, "log-level", "", "debug, info, warn or error")
	show := &cobra.Command{
		Use:   "show",
		Short: "Print the configuration that is in force",
		Args:  arguments(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			c, err := o.config()
			if err != nil {
				return err
			}
			text, err := c.TOML()
			fmt.Fprint(g.out, text)
			return err
		},
	}
	group := &cobra.Command{Use: "config", Short: "Show the configuration", Args: arguments(cobra.NoArgs), RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	group.AddCommand(show)
	cmd.AddCommand(group, newVersion(g))
	return cmd
}

// config is the file, the environment and the flags, each over the one before.
func (o *serving) config() (config.Config, error) {
	c, err := config.Load(o.file, os.Getenv)
	c.StateDir, c.Socket, c.Group = cmp.Or(o.set.StateDir, c.StateDir), cmp.Or(o.set.Socket, c.Socket), cmp.Or(o.set.Group, c.Group)
	c.LLM, c.LogLevel = cmp.Or(o.set.LLM, c.LLM), cmp.Or(o.set.LogLevel, c.LogLevel)
	return c, err
}

func (o *serving) serve(ctx context.Context) (err error) {
	c, err := o.config()
	if err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return usage("--log-level %s: want debug, info, warn or error", line(c.LogLevel))
	}
	log := slog.New(slog.NewTextHandler(o.err, &slog.HandlerOptions{Level: level}))
	dir, err := state.Open(c.StateDir)
	if err != nil {
		return err
	}
	broker, err := openModels(c.LLM)
	if err != nil {
		return err
	}
	var answers sandbox.Models
	if broker != nil {
		answers = models{broker}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	driver := qemu.New(qemu.Options{Log: log})
	if err := sweepRuns(ctx, dir, driver, log); err != nil {
		log.Warn("clean up after earlier runs", "error", err)
	}
	d, err := daemon.Open(ctx, daemon.Options{Dir: dir, Driver: driver, Models: answers, Log: log,
		Boot:   func(ctx context.Context, _ func(string)) (machine.Boot, error) { return bootFiles(ctx, dir, o.err) },
		Limits: daemon.Limits{Sandboxes: c.Limits.Sandboxes, OutputBytes: c.Limits.OutputBytes, DiskBytes: c.Limits.DiskBytes, HotBytes: c.Limits.HotBytes}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	socket := cmp.Or(c.Socket, d.Socket())
	l, err := listenAdmin(ctx, socket, c.Group)
	if err != nil {
		return err
	}
	srv := admin.NewServer(d, admin.ServerOptions{Release: Release(), Audit: filepath.Join(dir.DaemonPath(), "audit.log"), Log: log})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	log.Info("ready", "socket", socket, "sandboxes", len(d.Sandboxes()))
	systemd.SdNotify(false, systemd.SdNotifyReady)
	select {
	case err = <-served:
	case <-ctx.Done():
		log.Info("ending")
		systemd.SdNotify(false, systemd.SdNotifyStopping)
		late, cancel := context.WithTimeout(context.Background(), shutdownWait)
		defer cancel()
		err = errors.Join(srv.Shutdown(late), <-served)
	}
	return err
}

// listenAdmin takes the socket that systemd passes on, or makes one. A file
// that a killed daemon left is replaced, one that answers is not.
func listenAdmin(ctx context.Context, path, group string) (net.Listener, error) {
	passed, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("take sockets from systemd: %w", err)
	}
	if len(passed) > 0 && passed[0] != nil {
		return passed[0], nil
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%s is there and no socket", path)
		}
		c := admin.NewClient(path)
		defer c.Close()
		ctx, cancel := context.WithTimeout(ctx, answerWait)
		defer cancel()
		if _, err := c.Version(ctx); protocol.CodeOf(err) != protocol.CodeUnavailable {
			return nil, protocol.Errorf(protocol.CodeBusy, "another ratoond serves %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace the admin socket: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of the admin socket: %w", err)
	}
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("make the admin socket: %w", err)
	}
	if group == "" {
		return l, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return nil, errors.Join(protocol.Errorf(protocol.CodeInvalidArgument, "group %q of the admin socket: %v", group, err), l.Close())
	}
	gid, err := strconv.Atoi(g.Gid)
	if err == nil {
		err = errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("give the admin socket to group %s: %w", group, err), l.Close())
	}
	return l, nil
}
