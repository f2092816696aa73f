package llm

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

const redacted = "[redacted]"

// Secret is a value that no log, format verb or encoder shows. It is behind a
// pointer, since fmt shows the fields for %p whatever the methods say.
type Secret struct{ value *string }

var (
	_ slog.LogValuer = Secret{}
	_ fmt.Formatter  = Secret{}
)

// NewSecret hides value.
func NewSecret(value string) Secret { return Secret{&value} }

// IsZero tells that there is no value.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Reveal returns the value, for the request that needs it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// LogValue hides the value from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// Format hides the value from every verb of fmt.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// String hides the value.
func (Secret) String() string { return redacted }

// MarshalText hides the value from encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// redact cuts the value out of a text that someone else wrote.
func (s Secret) redact(text string) string {
	if s.IsZero() {
		return text
	}
	return strings.ReplaceAll(text, s.Reveal(), redacted)
}
