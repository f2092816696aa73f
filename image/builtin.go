package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/Microsoft/hcsshim/ext4/tar2ext4"
	"golang.org/x/sys/unix"
)

// Config is how programs of an image are started by default; the names are
// those of the OCI image configuration.
type Config struct {
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"` // "": root
}

// Image is a read-only root file system: one ext4 file for all guests.
type Image struct {
	Path   string
	Digest string
	Config Config
}

// BuiltinOptions configures the built-in recipe. The zero value is the default
// image without the Python helper.
type BuiltinOptions struct {
	// Helper holds the in-guest Python package in a directory "ratoon":
	// python.Helper, or os.DirFS of a directory that has it.
	Helper fs.FS
	// HelperVersion is the version the helper's metadata carries.
	HelperVersion string
	// Packages are added to DefaultPackages.
	Packages []string
	// Suite is Debian's release, default Suite; Mirror its archive, default
	// mmdebstrap's own, with security updates.
	Suite, Mirror string
}

// Suite is the Debian release of the built-in image.
const Suite = "bookworm"

// DefaultPackages are installed on top of Debian's minbase.
func DefaultPackages() []string {
	return []string{"ca-certificates", "git", "procps", "python3", "python3-msgpack", "python3-venv"}
}

const (
	kindBuiltin = "builtin"
	rootName    = "root.ext4"
	// spaceNeeded is the peak of an unpacked tree with its archives; spaceKept
	// that of the image beside it.
	spaceNeeded = 1 << 30
	spaceKept   = 512 << 20
)

func defaultConfig() *Config {
	return &Config{
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"},
		Cmd:        []string{"/bin/bash"},
		WorkingDir: "/workspace",
	}
}

// Builtin returns the image of the built-in recipe: Debian with Python and
// git, /workspace, a user "ratoon" (1000), and the Python helper.
func (c *Cache) Builtin(ctx context.Context, opt BuiltinOptions) (Image, error) {
	if opt.Suite == "" {
		opt.Suite = Suite
	}
	if opt.HelperVersion == "" {
		opt.HelperVersion = "0"
	}
	packages := slices.Compact(slices.Sorted(slices.Values(append(DefaultPackages(), opt.Packages...))))
	for _, p := range packages {
		if p == "" || strings.ContainsAny(p, ", \t\n") || p[0] == '-' {
			return Image{}, &Error{"build the image", fmt.Errorf("%q is not a package name", p), "name Debian packages"}
		}
	}
	extra, err := builtinFiles(opt)
	if err != nil {
		return Image{}, fmt.Errorf("read the Python helper: %w", err)
	}
	e, err := c.obtain(ctx, recipe{
		kind: kindBuiltin,
		inputs: map[string]any{"recipe": 1, "suite": opt.Suite, "mirror": opt.Mirror, "packages": packages,
			"files": digestFiles(extra), "hooks": hooks("")},
		pinned: true,
		build: func(ctx context.Context, dir string, m *Manifest) error {
			m.Config = defaultConfig()
			return c.bootstrap(ctx, dir, opt, packages, extra)
		},
	})
	if err != nil {
		return Image{}, err
	}
	img := Image{Path: e.path(rootName), Digest: e.Digest()}
	if e.Config != nil {
		img.Config = *e.Config
	}
	return img, nil
}

// hooks are mmdebstrap's last steps in the new tree, which they find as $1.
func hooks(overlay string) []string {
	return []string{
		"tar-in " + overlay + " /",
		`chroot "$1" groupadd --gid 1000 ratoon`,
		`chroot "$1" useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash ratoon`,
		// Guests run the helper as any user, who could not write its cache;
		// unchecked, because times in the image say nothing.
		`chroot "$1" python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3/dist-packages/ratoon`,
		// What mmdebstrap took from this host for the build.
		`cd "$1/etc" && rm -f hostname resolv.conf && echo ratoon >hostname && : >resolv.conf && : >machine-id`,
		// 30 MB that apt leaves now that it is told to keep none.
		`rm -f "$1"/var/cache/apt/*.bin`,
	}
}

// bootstrap makes root.ext4 in dir from mmdebstrap's tar stream.
func (c *Cache) bootstrap(ctx context.Context, dir string, opt BuiltinOptions, packages []string, extra []overlayFile) error {
	mode, err := bootstrapMode()
	if err != nil {
		return err
	}
	scratch, err := c.scratch(dir)
	if err != nil {
		return err
	}
	overlay := filepath.Join(scratch, "overlay.tar")
	if err := writeOverlay(overlay, extra); err != nil {
		return err
	}
	args := []string{"--mode=" + mode, "--variant=minbase", "--format=tar", "--include=" + strings.Join(packages, ","),
		`--aptopt=Acquire::Languages "none"`}
	for _, path := range []string{"doc", "man", "info", "locale", "lintian"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+path+"/*")
	}
	// Licences must go with the programs.
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
	for _, h := range hooks(overlay) {
		args = append(args, "--customize-hook="+h)
	}
	args = append(args, opt.Suite, "-")
	if opt.Mirror != "" {
		args = append(args, opt.Mirror)
	}
	steps := int64(0)
	err = c.convert(filepath.Join(dir, rootName), func(w io.Writer) error {
		return command{name: "mmdebstrap", args: args, out: w, env: []string{"TMPDIR=" + scratch}, line: func(s string) {
			if stage := bootstrapStage(s); stage != "" {
				steps++
				c.opt.Progress("Debian "+opt.Suite+": "+stage, steps, bootstrapStages)
			}
		}}.run(ctx)
	})
	if err != nil {
		return bootstrapError(err)
	}
	c.discard(scratch)
	return os.Remove(filepath.Join(dir, scratchName))
}

// bootstrapStages counts the stages below that every run passes.
const bootstrapStages = 6

// bootstrapStage picks out of mmdebstrap's messages those that tell a user how
// far it is.
func bootstrapStage(line string) string {
	stage := strings.TrimSuffix(strings.TrimPrefix(line, "I: "), "...")
	for _, known := range []string{"running apt-get update", "downloading packages", "extracting archives", "installing essential",
		"installing remaining", "creating tarball"} {
		if strings.HasPrefix(stage, known) {
			return stage
		}
	}
	return ""
}

// convert writes the tar stream that fill produces as an ext4 image.
func (c *Cache) convert(dst string, fill func(io.Writer) error) error {
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	defer out.Close()
	r, w := io.Pipe()
	filled := make(chan error, 1)
	go func() {
		err := fill(w)
		w.CloseWithError(err)
		filled <- err
	}()
	in := &counter{r: r, stage: "writing the ext4 image", tell: c.opt.Progress}
	err = tar2ext4.ConvertTarToExt4(in, out, tar2ext4.InlineData)
	if err == nil {
		// The archive's padding, so that its writer is not cut off.
		_, err = io.Copy(io.Discard, r)
	}
	r.CloseWithError(err)
	if fillErr := <-filled; fillErr != nil && !(err != nil && errors.Is(fillErr, io.ErrClosedPipe)) {
		return fillErr
	}
	return err
}

// scratch makes a directory for the tree under construction. It lies in the
// system's temporary directory: a state directory in a home is closed to the
// other uids that the packages' scripts and downloads run as.
func (c *Cache) scratch(dir string) (string, error) {
	base := os.TempDir()
	for path, need := range map[string]uint64{base: spaceNeeded, dir: spaceKept} {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err == nil && st.Bavail*uint64(st.Bsize) < need {
			return "", &Error{"build the image", fmt.Errorf("%w: %s has %d MB free", ErrNoSpace, path, st.Bavail*uint64(st.Bsize)>>20),
				fmt.Sprintf("free %d MB there, or point TMPDIR or the state directory elsewhere", need>>20)}
		}
	}
	scratch, err := os.MkdirTemp(base, scratchPrefix)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, scratchName), []byte(scratch), 0o600); err != nil {
		return "", errors.Join(err, os.RemoveAll(scratch))
	}
	return scratch, os.Chmod(scratch, 0o755)
}

// bootstrapMode says how mmdebstrap gets to be root in the new tree.
func bootstrapMode() (string, error) {
	if os.Geteuid() == 0 {
		return "root", nil
	}
	const op = "build the image as an ordinary user"
	if _, err := exec.LookPath("newuidmap"); err != nil {
		return "", &Error{op, fmt.Errorf("%w: newuidmap", ErrNoTool), "as root: apt-get install uidmap (`make setup` does it)"}
	}
	name := currentUser()
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		b, err := os.ReadFile(file)
		if err != nil || !hasSubID(string(b), name) {
			return "", &Error{op, fmt.Errorf("%w: %s has no range for %s", ErrNoUserNamespaces, file, name),
				fmt.Sprintf("as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", name)}
		}
	}
	return "unshare", nil
}

func hasSubID(file, user string) bool {
	for line := range strings.Lines(file) {
		owner, _, _ := strings.Cut(line, ":")
		if owner == user || owner == fmt.Sprint(os.Getuid()) {
			return true
		}
	}
	return false
}

func bootstrapError(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, unix.ENOSPC):
		return err
	case isNetwork(err):
		return &Error{"download Debian packages", errors.Join(ErrNoNetwork, err), "make the Debian archive reachable, or set http_proxy"}
	case strings.Contains(err.Error(), "No space left on device"):
		return &Error{"build the image", errors.Join(ErrNoSpace, err), "free some space in " + os.TempDir() + ", or point TMPDIR elsewhere"}
	case os.Geteuid() != 0 && strings.Contains(err.Error(), "unshare"):
		return &Error{"build the image as an ordinary user", errors.Join(ErrNoUserNamespaces, err),
			"as root: sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"}
	}
	return err
}

func digestFiles(files []overlayFile) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%s %o %d %x\n", f.name, f.mode, f.uid, sha256.Sum256(f.data))
	}
	return hex.EncodeToString(h.Sum(nil))
}
