// Package python carries the in-guest Python helper inside the host's binary,
// from where the image builder installs it.
package python

import "embed"

// Helper holds the helper's modules below "ratoon". The host side of the same
// distribution (its subpackages) is not for guests and is left out.
//
//go:embed ratoon/*.py ratoon/py.typed
var Helper embed.FS
