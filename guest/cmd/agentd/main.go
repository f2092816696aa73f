// Command agentd is Ratoon's agent inside a guest: PID 1, the worker that
// speaks with the host, and the helper of shell scripts.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/ratoon-project/ratoon/guest/boot"
	"github.com/ratoon-project/ratoon/guest/call"
)

const usage = `usage: agentd call ...      calls for shell scripts; see agentd call --help
       agentd worker ...    what PID 1 runs
       agentd version

As /init of an initramfs agentd boots the guest.
`

func main() {
	// Not only by its pid: a guest program may run agentd call as the first
	// process of a pid namespace.
	if os.Getpid() == 1 && filepath.Base(os.Args[0]) == "init" {
		boot.Main(boot.Options{Release: release()})
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return call.ExitUsage
	}
	switch args[0] {
	case "call":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return call.Run(ctx, args[1:], call.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	case "worker":
		return runWorker(args[1:])
	case "version":
		fmt.Println(release())
		return call.ExitOK
	case "help", "-h", "--help":
		fmt.Print(usage)
		return call.ExitOK
	}
	fmt.Fprint(os.Stderr, usage)
	return call.ExitUsage
}

// release is the version of this build's module.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
