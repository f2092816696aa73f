package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/config"
	"github.com/ratoon-project/ratoon/protocol"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ratoond.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestLoad(t *testing.T) {
	path := write(t, "group = 'ratoon'\nllm = 'echo'\n[limits]\nsandboxes = 7\n")
	got, err := config.Load(path, env("RATOON_LLM", "openai", "RATOON_LIMITS_OUTPUT_BYTES", "4096"))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Group, want.LLM = "ratoon", "openai"
	want.Limits.Sandboxes, want.Limits.OutputBytes = 7, 4096
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		text, want string
		env        []string
	}{
		"misspelled":     {text: "[limits]\nsandboxs = 7\n", want: "sandboxs"},
		"no TOML":        {text: "group = \n", want: "not understood"},
		"wrong type":     {text: "group = 7\n", want: "not understood"},
		"negative":       {text: "[limits]\nsandboxes = -1\n", want: "negative"},
		"level":          {text: "log_level = 'loud'\n", want: "log_level"},
		"bad variable":   {env: []string{"RATOON_LIMITS_SANDBOXES", "many"}, want: "RATOON_LIMITS_SANDBOXES"},
		"level variable": {env: []string{"RATOON_LOG_LEVEL", "x"}, want: "log_level"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(write(t, c.text), env(c.env...))
			if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %s in it", err, c.want)
			}
		})
	}
	if _, err := config.Load("/no/such/file", env()); err == nil {
		t.Fatal("a file that was named and is not there is no error")
	}
}

// TestShown: what is shown can be a file again.
func TestShown(t *testing.T) {
	want := config.Default()
	want.Socket = "/run/x.sock"
	text, err := want.TOML()
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Load(write(t, text), env())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}
