package admin

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// checkQuery refuses a query that cannot be read or has more than the known
// parameters, each once: the rest would be ignored.
func (q *request) checkQuery(known []string) error {
	all, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "read the query: %v", err)
	}
	for name, values := range all {
		switch {
		case !slices.Contains(known, name):
			return protocol.Errorf(protocol.CodeInvalidArgument, "the query has %.40q; this route takes %s", name, cmp.Or(strings.Join(known, ", "), "none"))
		case len(values) > 1:
			return protocol.Errorf(protocol.CodeInvalidArgument, "the query has %.40q %d times", name, len(values))
		}
	}
	return nil
}

// flag reads a query parameter that is true or false, and false by default.
func (q *request) flag(name string) (bool, error) {
	switch v := q.URL.Query(); {
	case !v.Has(name), v.Get(name) == "false":
		return false, nil
	case v.Get(name) == "true":
		return true, nil
	default:
		return false, protocol.Errorf(protocol.CodeInvalidArgument, "%s=%.40q: want true or false", name, v.Get(name))
	}
}

// offset reads a query parameter that counts bytes, 0 by default.
func (q *request) offset(name string) (int64, error) {
	v := q.URL.Query()
	if !v.Has(name) {
		return 0, nil
	}
	n, err := strconv.ParseInt(v.Get(name), 10, 64)
	if err != nil || n < 0 || n > maxWhole {
		return 0, protocol.Errorf(protocol.CodeInvalidArgument, "%s=%.40q: want a number, 0 to %d", name, v.Get(name), maxWhole)
	}
	return n, nil
}
