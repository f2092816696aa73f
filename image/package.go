package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// unpackKernel downloads and unpacks the package that the cloud kernel's meta
// package depends on. apt-get download and dpkg-deb -x need no privileges.
func (c *Cache) unpackKernel(ctx context.Context, dir string) (vmlinuz, modules string, err error) {
	for _, d := range []string{dir, filepath.Join(dir, "root")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", "", err
		}
	}
	deb, err := c.downloadKernel(ctx, dir, nil)
	if err != nil && ctx.Err() == nil {
		// The lists are missing, or older than the archive: read it anew into
		// lists of our own.
		c.opt.Progress("reading the package archive's index", 0, 0)
		own, prepErr := privateApt(dir)
		if prepErr != nil {
			return "", "", prepErr
		}
		if _, err = output(ctx, command{name: "apt-get", args: append(own, "update"), dir: dir}); err == nil {
			deb, err = c.downloadKernel(ctx, dir, own)
		}
	}
	if err != nil {
		return "", "", kernelError(err)
	}
	c.opt.Progress("unpacking "+filepath.Base(deb), 0, 0)
	root := filepath.Join(dir, "root")
	if _, err := output(ctx, command{name: "dpkg-deb", args: []string{"-x", deb, root}}); err != nil {
		return "", "", kernelError(err)
	}
	// Debian 13 moves /lib/modules to /usr/lib/modules.
	for _, lib := range []string{"lib/modules", "usr/lib/modules"} {
		if vmlinuz, modules = installedKernel(filepath.Join(root, "boot"), filepath.Join(root, lib)); vmlinuz != "" {
			return vmlinuz, modules, nil
		}
	}
	return "", "", kernelError(fmt.Errorf("%s holds no cloud kernel", filepath.Base(deb)))
}

func kernelError(err error) error {
	remedy := "as root: apt-get update && apt-get install " + kernelPackage + ", or set RATOON_KERNEL (and RATOON_MODULES) to a kernel"
	if isNetwork(err) {
		err = errors.Join(ErrNoNetwork, err)
		remedy = "connect to the package archive, or " + remedy
	}
	return &Error{"get the guest kernel", errors.Join(ErrNoKernel, err), remedy}
}

var versioned = regexp.MustCompile(`^linux-image-[0-9][a-z0-9.+-]*$`)

// downloadKernel fetches the package into dir. opts are options of apt's.
func (c *Cache) downloadKernel(ctx context.Context, dir string, opts []string) (string, error) {
	text, err := output(ctx, command{name: "apt-cache", args: append(opts, "show", "--no-all-versions", kernelPackage), dir: dir})
	if err != nil {
		return "", err
	}
	pkg := dependsOn(text, versioned)
	if pkg == "" {
		return "", fmt.Errorf("the package lists know no %s", kernelPackage)
	}
	c.opt.Progress("downloading "+pkg, 0, 0)
	// As root apt would drop to a user who may not write here, and warn.
	args := append(opts, "-o", "APT::Sandbox::User=root", "download", pkg)
	if _, err := output(ctx, command{name: "apt-get", args: args, dir: dir}); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages", pkg, len(debs))
	}
	return debs[0], nil
}

// dependsOn finds the first dependency of a control paragraph that matches.
func dependsOn(paragraph string, want *regexp.Regexp) string {
	for line := range strings.Lines(paragraph) {
		list, ok := strings.CutPrefix(line, "Depends:")
		if !ok {
			continue
		}
		for dep := range strings.SplitSeq(list, ",") {
			if fields := strings.Fields(dep); len(fields) > 0 && want.MatchString(fields[0]) {
				return fields[0]
			}
		}
	}
	return ""
}

// privateApt gives apt lists and caches below dir, so that reading the archive
// needs no root.
func privateApt(dir string) ([]string, error) {
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, "apt", d), 0o755); err != nil {
			return nil, err
		}
	}
	base := filepath.Join(dir, "apt")
	return []string{
		"-o", "Dir::State::Lists=" + filepath.Join(base, "lists"),
		"-o", "Dir::Cache=" + base,
		"-o", "APT::Sandbox::User=" + currentUser(),
		"-o", "APT::Update::Error-Mode=any",
	}, nil
}
