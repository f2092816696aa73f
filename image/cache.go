package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/internal/fault"
)

// Options configures a Cache. The zero value but for Dir is the default.
type Options struct {
	// Dir is the cache's directory, made when missing; see Dir.
	Dir string
	// Progress, when set, is told about long work.
	Progress Progress
	// Log receives warnings about entries that were set aside; nil discards.
	Log *slog.Logger
	// Refresh makes new generations instead of using what is pinned.
	Refresh bool
	// Kernel is a bzImage to use instead of the distribution's, and
	// ModulesDir its modules (as /lib/modules/RELEASE); without ModulesDir
	// the kernel must have everything built in.
	Kernel, ModulesDir string
}

// Dir is the default cache directory below a state directory.
func Dir(stateDir string) string { return filepath.Join(stateDir, "cache", "images") }

// Cache builds and keeps kernels, initramfs and root images.
type Cache struct {
	opt Options
	log *slog.Logger
}

// New makes a Cache. It does no I/O.
func New(opt Options) *Cache {
	c := &Cache{opt: opt, log: opt.Log}
	c.opt.Progress = serial(opt.Progress)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c
}

// FileSum is one file of an entry.
type FileSum struct {
	Name   string `json:"name"` // relative to the entry
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Manifest describes an entry; it lies in it as manifest.json.
type Manifest struct {
	Kind    string          `json:"kind"` // kernel, initramfs, builtin
	Key     string          `json:"key"`  // digest of the inputs
	Inputs  json.RawMessage `json:"inputs"`
	Built   time.Time       `json:"built"`
	Release string          `json:"release,omitempty"` // kernels
	Config  *Config         `json:"config,omitempty"`  // root images
	Files   []FileSum       `json:"files"`
}

// Entry is one published result.
type Entry struct {
	Dir string
	Manifest
}

// Digest names the content of the entry.
func (e Entry) Digest() string {
	if len(e.Files) == 1 {
		return "sha256:" + e.Files[0].SHA256
	}
	h := sha256.New()
	for _, f := range e.Files {
		fmt.Fprintf(h, "%s %d %s\n", f.Name, f.Size, f.SHA256)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// path of a file in the entry.
func (e Entry) path(name string) string { return filepath.Join(e.Dir, name) }

const (
	manifestName = "manifest.json"
	stampName    = "verified.json"
	shortDigest  = 16 // hex digits of a digest in file names
)

// recipe is what a kind of entry is made from.
type recipe struct {
	kind   string
	inputs any // all that decides the result; JSON-encoded for the key
	pinned bool
	build  func(ctx context.Context, dir string, m *Manifest) error
}

func (r recipe) key() (string, json.RawMessage, error) {
	raw, err := json.Marshal(r.inputs)
	if err != nil {
		return "", nil, fmt.Errorf("encode inputs of %s: %w", r.kind, err)
	}
	sum := sha256.Sum256(append([]byte(r.kind+"\n"), raw...))
	return hex.EncodeToString(sum[:]), raw, nil
}

// obtain returns the newest good entry of a recipe, building it when there is
// none.
func (c *Cache) obtain(ctx context.Context, r recipe) (Entry, error) {
	key, raw, err := r.key()
	if err != nil {
		return Entry{}, err
	}
	asked := time.Now()
	refresh := c.opt.Refresh && r.pinned
	if !refresh {
		if e, ok := c.lookup(r.kind, key, keepDamaged); ok {
			return e, nil
		}
	}
	for _, d := range []string{c.opt.Dir, c.sub("tmp"), c.sub("locks"), c.sub(r.kind)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return Entry{}, explain("make image cache", c.opt.Dir, err)
		}
	}
	unlock, err := c.lock(ctx, r.kind, key)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	if e, ok := c.lookup(r.kind, key, removeDamaged); ok && (!refresh || e.Built.After(asked)) {
		return e, nil
	}
	c.sweep(name(r.kind, key))
	c.sweep("")
	return c.make(ctx, r, Manifest{Kind: r.kind, Key: key, Inputs: raw})
}

// name is what locks and temporary directories of a recipe are called by.
func name(kind, key string) string { return kind + "-" + key[:shortDigest] }

func (c *Cache) sub(elem ...string) string {
	return filepath.Join(append([]string{c.opt.Dir}, elem...)...)
}

// make builds an entry in a temporary directory and publishes it. The caller
// holds the recipe's lock.
func (c *Cache) make(ctx context.Context, r recipe, m Manifest) (Entry, error) {
	tmp, err := os.MkdirTemp(c.sub("tmp"), name(r.kind, m.Key)+"-")
	if err != nil {
		return Entry{}, explain("build "+r.kind, c.opt.Dir, err)
	}
	defer c.discard(tmp)
	if err := r.build(ctx, tmp, &m); err != nil {
		return Entry{}, explain("build "+r.kind, c.opt.Dir, err)
	}
	c.opt.Progress("storing the "+r.kind, 0, 0)
	e, err := c.publish(tmp, m)
	if err != nil {
		return Entry{}, explain("store "+r.kind, c.opt.Dir, err)
	}
	return e, nil
}

func (c *Cache) publish(tmp string, m Manifest) (Entry, error) {
	m.Built = time.Now().UTC()
	var err error
	if m.Files, err = sums(tmp); err != nil {
		return Entry{}, err
	}
	e := Entry{Manifest: m}
	content := strings.TrimPrefix(e.Digest(), "sha256:")[:shortDigest]
	e.Dir = c.sub(m.Kind, m.Key[:shortDigest]+"."+content)
	if old, ok := c.read(e.Dir, removeDamaged); ok {
		return old, nil // a refresh that gave the same again
	}
	body, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Entry{}, err
	}
	if err := fault.Point("image:manifest"); err != nil {
		return Entry{}, err
	}
	if err := writeFile(filepath.Join(tmp, manifestName), body); err != nil {
		return Entry{}, err
	}
	if err := writeStamp(tmp, m.Files); err != nil {
		return Entry{}, err
	}
	if err := errors.Join(os.Chmod(tmp, 0o755), syncPath(tmp), fault.Point("image:rename")); err != nil {
		return Entry{}, err
	}
	if err := os.Rename(tmp, e.Dir); err != nil {
		return Entry{}, err
	}
	return e, syncPath(filepath.Dir(e.Dir))
}

// sums describes and fsyncs all files below dir.
func sums(dir string) ([]FileSum, error) {
	var out []FileSum
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o755)
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := os.Chmod(path, 0o644); err != nil {
			return err
		}
		if err := syncPath(path); err != nil {
			return err
		}
		n, sum, err := hashFile(path)
		out = append(out, FileSum{Name: rel, Size: n, SHA256: sum})
		return err
	})
	return out, err
}

// onDamage says what to do with a damaged entry. Only the holder of the
// recipe's lock may remove one: another process may be replacing it.
type onDamage int

const (
	keepDamaged onDamage = iota
	removeDamaged
)

// lookup finds the newest good entry of a key.
func (c *Cache) lookup(kind, key string, damage onDamage) (Entry, bool) {
	paths, err := filepath.Glob(c.sub(kind, key[:shortDigest]+".*"))
	if err != nil {
		return Entry{}, false
	}
	var found []Entry
	for _, p := range paths {
		if e, ok := c.read(p, damage); ok && e.Key == key {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b Entry) int { return cmp.Compare(b.Built.UnixNano(), a.Built.UnixNano()) })
	if len(found) == 0 {
		return Entry{}, false
	}
	return found[0], true
}

// read loads and checks the entry in dir.
func (c *Cache) read(dir string, damage onDamage) (Entry, bool) {
	if _, err := os.Lstat(dir); err != nil {
		return Entry{}, false
	}
	e := Entry{Dir: dir}
	body, err := os.ReadFile(e.path(manifestName))
	if err == nil {
		err = json.Unmarshal(body, &e.Manifest)
	}
	if err == nil {
		err = e.check()
	}
	if err != nil {
		c.log.Warn("damaged cache entry", "path", dir, "error", err)
		if damage == removeDamaged {
			c.discard(dir)
		}
		return Entry{}, false
	}
	return e, true
}

// List returns the good entries of all kinds.
func (c *Cache) List() []Entry {
	var out []Entry
	for _, kind := range []string{kindKernel, kindInitramfs, kindBuiltin} {
		paths, err := filepath.Glob(c.sub(kind, "*.*"))
		if err != nil {
			continue
		}
		for _, p := range paths {
			if e, ok := c.read(p, keepDamaged); ok {
				out = append(out, e)
			}
		}
	}
	return out
}

// Remove deletes an entry. The caller makes sure that no template or
// checkpoint names its digest.
func (c *Cache) Remove(ctx context.Context, e Entry) error {
	unlock, err := c.lock(ctx, e.Kind, e.Key)
	if err != nil {
		return err
	}
	defer unlock()
	return c.discard(e.Dir)
}

func hashFile(path string) (int64, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return n, hex.EncodeToString(h.Sum(nil)), err
}

func writeFile(path string, b []byte) error {
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return err
	}
	return syncPath(path)
}

// syncPath fsyncs a file or directory.
func syncPath(path string) error {
	if err := fault.Point("image:fsync"); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
