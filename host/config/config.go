// Package config is what ratoond can be told: by a file, the environment and
// flags, each over the one before.
//
//	c, err := config.Load("/etc/ratoon/ratoond.toml", os.Getenv)
//
// The file is TOML and strict: a key that is not known is an error that names
// its line, so that a misspelled limit is not no limit. The environment has
// RATOON_ and the name of the key in capitals, with _ for a dot:
// RATOON_LIMITS_SANDBOXES.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/ratoon-project/ratoon/protocol"
)

// Config is everything that can be set.
type Config struct {
	StateDir string `toml:"state_dir" comment:"where everything is kept; empty: /var/lib/ratoon, or ~/.local/state/ratoon for an ordinary user"`
	Socket   string `toml:"socket" comment:"the admin socket; empty: daemon/ratoon.sock in state_dir"`
	Group    string `toml:"group" comment:"group that may use the socket; empty: the user only"`
	LLM      string `toml:"llm" comment:"who answers llm_query: openai[:MODEL], echo, cassette:FILE; empty: nobody"`
	LogLevel string `toml:"log_level" comment:"debug, info, warn or error"`
	Limits   Limits `toml:"limits" comment:"of the whole host"`
}

// Limits of the host. 0 is the default.
type Limits struct {
	Sandboxes   int   `toml:"sandboxes" comment:"that are not removed"`
	OutputBytes int64 `toml:"output_bytes" comment:"kept of each stream of each program"`
	DiskBytes   int64 `toml:"disk_bytes" comment:"of checkpoints and bases; 0: as many as fit"`
	HotBytes    int64 `toml:"hot_bytes" comment:"of checkpoints that are not compacted, the newest; -1: none"`
}

// Default is the configuration that nothing changes.
func Default() Config {
	return Config{LogLevel: "info", Limits: Limits{Sandboxes: 1024, OutputBytes: 16 << 20, HotBytes: 8 << 30}}
}

// Load reads the file over the defaults, and the environment over the file. An
// empty path, or none at the default place, is no file.
func Load(path string, getenv func(string) string) (Config, error) {
	c := Default()
	if path != "" {
		if err := c.read(path); err != nil {
			return c, err
		}
	}
	err := c.environment(reflect.ValueOf(&c).Elem(), "RATOON", getenv)
	return c, errors.Join(err, c.check())
}

// DefaultPath is read when no other file is named.
const DefaultPath = "/etc/ratoon/ratoond.toml"

func (c *Config) read(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultPath {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	err = toml.NewDecoder(f).DisallowUnknownFields().Decode(c)
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s has a key that is not known:\n%s", path, strict.String())
	}
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s is not understood:\n%s", path, bad.String())
	}
	if err != nil {
		return fmt.Errorf("read configuration %s: %w", path, err)
	}
	return nil
}

// environment sets the fields of v that have a variable.
func (c *Config) environment(v reflect.Value, prefix string, getenv func(string) string) error {
	for i := range v.NumField() {
		f, t := v.Field(i), v.Type().Field(i)
		name := prefix + "_" + strings.ToUpper(t.Tag.Get("toml"))
		if f.Kind() == reflect.Struct {
			if err := c.environment(f, name, getenv); err != nil {
				return err
			}
			continue
		}
		text := getenv(name)
		if text == "" {
			continue
		}
		if f.Kind() == reflect.String {
			f.SetString(text)
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return protocol.Errorf(protocol.CodeInvalidArgument, "%s=%.40q: want a number", name, text)
		}
		f.SetInt(n)
	}
	return nil
}

func (c *Config) check() error {
	if c.Limits.Sandboxes < 0 || c.Limits.OutputBytes < 0 || c.Limits.DiskBytes < 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "limits are not negative")
	}
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "log_level %.40q: want debug, info, warn or error", c.LogLevel)
}

// TOML is the configuration as a file would have it, with comments.
func (c Config) TOML() (string, error) {
	b, err := toml.Marshal(c)
	return string(b), err
}
