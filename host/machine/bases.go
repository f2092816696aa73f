package machine

import (
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/protocol"
)

// base is an open base and how many machines map it.
type base struct {
	*memory.Base
	ready   chan struct{} // closed when Base or err is set
	err     error
	users   int
	release func()
}

// openBase opens a base once for all machines that map it.
func (e *Engine) openBase(id protocol.BaseID) (*base, error) {
	e.mu.Lock()
	b := e.bases[id]
	if b != nil {
		b.users++
		e.mu.Unlock()
		<-b.ready
		if b.err != nil {
			e.closeBase(id, b)
			return nil, b.err
		}
		return b, nil
	}
	b = &base{ready: make(chan struct{}), users: 1}
	e.bases[id] = b
	e.mu.Unlock()
	b.err = e.fillBase(id, b)
	close(b.ready)
	if b.err != nil {
		e.closeBase(id, b)
		return nil, b.err
	}
	return b, nil
}

func (e *Engine) fillBase(id protocol.BaseID, b *base) error {
	release, err := e.store.HoldBase(id)
	if err != nil {
		return err
	}
	files, err := e.store.BaseFiles(id)
	if err == nil {
		b.Base, err = memory.OpenBase(id, files.RAM)
	}
	if err != nil {
		release()
		return err
	}
	b.release = release
	return nil
}

// closeBase gives one use back.
func (e *Engine) closeBase(id protocol.BaseID, b *base) {
	e.mu.Lock()
	b.users--
	last := b.users == 0
	if last && e.bases[id] == b {
		delete(e.bases, id)
	}
	e.mu.Unlock()
	if !last || b.Base == nil {
		return
	}
	if err := b.Base.Close(); err != nil {
		e.log.Error("close base", "base", id, "error", err)
	}
	b.release()
}
