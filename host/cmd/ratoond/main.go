// Command ratoond serves sandboxes that outlive one program: see `ratoond
// --help`.
package main

import (
	"context"
	"os"

	"github.com/ratoon-project/ratoon/host/cli"
)

func main() { os.Exit(cli.DaemonMain(context.Background())) }
