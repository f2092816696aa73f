package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/ratoon-project/ratoon/guest/agent"
	"github.com/ratoon-project/ratoon/guest/boot"
	"github.com/ratoon-project/ratoon/guest/call"
	"github.com/ratoon-project/ratoon/guest/exec"
	"github.com/ratoon-project/ratoon/guest/files"
	"github.com/ratoon-project/ratoon/guest/fork"
	"github.com/ratoon-project/ratoon/guest/keep"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// runWorker runs until PID 1 goes away or the rules cannot be kept.
func runWorker(args []string) int {
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	carrier := fs.String("carrier", boot.CarrierSerial, "what carries the link: serial or vsock")
	debug := fs.Bool("debug", false, "log more")
	if err := fs.Parse(args); err != nil {
		return call.ExitUsage
	}
	signals := boot.TakeSignals()
	level := slog.LevelInfo
	if *debug {
		level = slog.LevelDebug
	}
	log := boot.NewLog(os.Stderr, level)
	if signals != nil {
		log.Error("take signals", "error", signals)
	}
	if err := work(context.Background(), *carrier, log); err != nil {
		log.Error("the worker ends", "error", err)
		return call.ExitFailed
	}
	return call.ExitOK
}

func work(ctx context.Context, carrierName string, log *slog.Logger) error {
	keeper, first, err := dialKeeper()
	if err != nil {
		return err
	}
	defer keeper.Close()
	freezer := fork.NewFreezer(boot.UserCgroup)
	frozen, err := freezer.Frozen()
	if err != nil {
		return err
	}
	carrier, err := openCarrier(ctx, carrierName)
	if err != nil {
		return err
	}
	programs := exec.New(exec.Config{CgroupRoot: boot.UserCgroup, Log: log})
	defer programs.Close()
	server := files.New(files.Config{Root: "/"})
	a := agent.New(agent.Config{
		Release: release(), First: first, Lost: frozen,
		Keeper: keeper, Users: freezer, Fixer: fork.Host(boot.IdentityFiles),
		Participants: []fork.Participant{execPart{programs}, filesPart{server}},
		Execs:        execServer{programs}, Files: filesServer{server},
		Accept: agent.Carrier(carrier, link.Options{Log: log}), Socket: protocol.GuestSocket, Log: log,
	})
	return a.Run(ctx)
}

// dialKeeper takes over the connection that PID 1 left open for its worker.
func dialKeeper() (*keep.Client, keep.First, error) {
	f := os.NewFile(boot.KeeperFD, "keeper")
	conn, err := net.FileConn(f)
	f.Close() // else programs would inherit it
	if err != nil {
		return nil, keep.First{}, fmt.Errorf("take over the connection to PID 1: %w", err)
	}
	return keep.Dial(conn)
}

func openCarrier(ctx context.Context, name string) (link.Carrier, error) {
	switch name {
	case boot.CarrierSerial:
		return link.OpenSerialPorts(ctx)
	case boot.CarrierVsock:
		return link.ListenVsock()
	}
	return nil, fmt.Errorf("carrier %q: want %s or %s", name, boot.CarrierSerial, boot.CarrierVsock)
}
