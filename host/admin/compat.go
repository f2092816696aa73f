package admin

import (
	"context"
	"regexp"
	"strconv"

	"github.com/ratoon-project/ratoon/protocol"
)

// Check asks the daemon for its versions. CodeVersionMismatch, with the
// versions of both ends, is one that has another API; release is that of this
// end.
func (c *Client) Check(ctx context.Context, release string) (Version, error) {
	v, err := c.Version(ctx)
	switch {
	case protocol.CodeOf(err) == protocol.CodeVersionMismatch, protocol.CodeOf(err) == protocol.CodeNotFound:
		return v, protocol.Errorf(protocol.CodeVersionMismatch, "ratoond at %s: %v; this is %s with API %d", c.socket, err, release, API)
	case err == nil && v.API != API:
		return v, protocol.Errorf(protocol.CodeVersionMismatch, "ratoond at %s is %.40q with API %d; this is %s with API %d", c.socket, v.Release, v.API, release, API)
	}
	return v, err
}

var versioned = regexp.MustCompile(`^/v([0-9]{1,9})(/|$)`)

// noRoute is the error of a path that is not served. A later server has to
// answer clients of this API in the same way.
func (s *Server) noRoute(path string) error {
	if m := versioned.FindStringSubmatch(path); m != nil {
		if n, _ := strconv.Atoi(m[1]); n != API {
			e := protocol.Errorf(protocol.CodeVersionMismatch, "the request is for API %d; ratoond %s has API %d", n, s.opt.Release, API)
			return e.With("api", API)
		}
	}
	return protocol.Errorf(protocol.CodeNotFound, "no such route; GET /v1/openapi.yaml describes all")
}
