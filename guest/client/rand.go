package client

import (
	crand "crypto/rand"
	"crypto/sha256"
	"math/rand/v2"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// Rand is a generator that differs in every copy of this machine: it is seeded
// anew before a pending call of this client returns from a thaw and, with an
// OnResume subscription, also when no call was pending; before that event
// arrives other goroutines may draw what they would have drawn in another
// copy. In a sandbox with a deterministic seed it follows that seed instead.
// It is safe for concurrent use and not for secrets: use crypto/rand for those.
func (c *Client) Rand() *rand.Rand { return rand.New(&c.rand) }

// source is a generator that can be seeded while it is used.
type source struct {
	mu  sync.Mutex
	gen *rand.ChaCha8
}

var _ rand.Source = (*source)(nil)

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen.Uint64()
}

// seed starts anew from e, or from the kernel.
func (s *source) seed(e *protocol.ResumeEvent) {
	var key [32]byte
	switch {
	case e == nil:
		crand.Read(key[:])
	case len(e.Seed) > 0:
		key = sha256.Sum256(e.Seed)
	default:
		key = sha256.Sum256(e.Entropy)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gen = rand.NewChaCha8(key)
}
