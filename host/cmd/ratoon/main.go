// The ratoon command.
package main

import (
	"context"
	"os"

	"github.com/ratoon-project/ratoon/host/cli"
)

func main() { os.Exit(cli.Main(context.Background())) }
