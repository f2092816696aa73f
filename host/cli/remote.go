package cli

import (
	"context"
	"os"
	"path/filepath"

	"github.com/ratoon-project/ratoon/host/admin"
)

// EnvSocket names the socket of ratoond when no flag does.
const EnvSocket = "RATOON_SOCKET"

// systemSocket is where packaging/ has systemd make it.
const systemSocket = "/run/ratoon/ratoon.sock"

// admin is the client of the daemon that this command line means.
func (g *global) admin(ctx context.Context) (*admin.Client, error) {
	path := g.socket
	if path == "" {
		path = os.Getenv(EnvSocket)
	}
	if path == "" {
		dir, err := g.state()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(dir.DaemonPath(), "ratoon.sock")
		if _, err := os.Lstat(path); err != nil && g.stateDir == "" {
			if _, err := os.Lstat(systemSocket); err == nil {
				path = systemSocket
			}
		}
	}
	c := admin.NewClient(path)
	if _, err := c.Check(ctx, Release()); err != nil {
		return nil, err
	}
	return c, nil
}
