package admin

import (
	"strings"
	"time"
)

// SetWaits shortens how long a client may take for a head and a body, before
// Serve.
func (s *Server) SetWaits(d time.Duration) { s.http.ReadHeaderTimeout, s.bodyWait = d, d }

// Routes lists what is served.
func Routes() []string {
	var out []string
	for _, r := range routes() {
		text := r.method + " " + r.path + "?" + strings.ReplaceAll(r.query, " ", "&")
		if r.creates {
			text += " with a key"
		}
		out = append(out, text)
	}
	return out
}

// Decode reads a body into v.
func Decode(body []byte, v any) error { return (&request{body: body}).decode(v) }
