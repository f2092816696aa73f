package image

import (
	"os"
	"path/filepath"
)

// Names of the environment that point at parts which are not in their usual place.
const (
	EnvAgentd  = "RATOON_AGENTD"  // the agentd binary
	EnvKernel  = "RATOON_KERNEL"  // Options.Kernel
	EnvModules = "RATOON_MODULES" // Options.ModulesDir
)

// FindAgentd finds the guest agent's binary: what RATOON_AGENTD names, else
// agentd beside this executable.
func FindAgentd() (string, error) {
	path := os.Getenv(EnvAgentd)
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", agentdMissing("agentd")
		}
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		path = filepath.Join(filepath.Dir(self), "agentd")
	}
	if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() {
		return "", agentdMissing(path)
	}
	return path, nil
}

func agentdMissing(path string) error {
	return &Error{"find agentd at " + path, ErrNoAgentd, "run `make build`, or set " + EnvAgentd + " to the binary"}
}
