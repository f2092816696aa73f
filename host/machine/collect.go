package machine

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// templateLife is for how long a template is kept after its last use: one of an
// earlier image or release is not used again.
const templateLife = 7 * 24 * time.Hour

// Collected is what Collect removed.
type Collected struct {
	checkpoint.Collected
	// Templates of the cache that all host processes share.
	Templates []protocol.BaseID `json:"templates"`
}

// NewCollected is the report of nothing, in which no list is nil.
func NewCollected() Collected {
	return Collected{Collected: checkpoint.NewCollected(), Templates: []protocol.BaseID{}}
}

// Collect removes what nobody needs: checkpoints of class internal that needed
// does not want, bases, what was cut short, and templates that were not used for
// a week. It may run beside everything else.
func (e *Engine) Collect(ctx context.Context, needed func(checkpoint.Manifest) bool) (Collected, error) {
	c := NewCollected()
	var err error
	mapped := e.mapped()
	c.Collected, err = e.store.Collect(ctx, checkpoint.CollectOptions{Needed: needed, KeepBase: func(m checkpoint.BaseManifest) bool {
		return mapped[m.ID] || m.From.Template != "" && time.Since(usedAt(e.store, m.ID)) < templateLife
	}})
	for _, id := range c.Checkpoints {
		e.forget(id)
	}
	templates, freed, failed := PruneTemplates(e.templates.Dir(), e.log)
	c.Templates = append(c.Templates, templates...)
	c.Freed += freed
	return c, errors.Join(err, failed)
}

// mapped are the bases of machines, also of those that are not adopted yet.
func (e *Engine) mapped() map[protocol.BaseID]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[protocol.BaseID]bool{}
	for _, r := range e.rooms {
		out[r.record.Base] = true
	}
	return out
}

// PruneTemplates removes from a cache of templates those that were not used for
// a week, those that cannot be used, and what killed builders have left. A
// template that is about to be used stays; stores that took it in have it
// themselves. It returns how many bytes of disk that gave back.
func PruneTemplates(dir string, log *slog.Logger) (removed []protocol.BaseID, freed int64, err error) {
	cache, err := checkpoint.Open(dir, checkpoint.Options{Log: log})
	if err != nil {
		return nil, 0, err
	}
	list, damaged, err := cache.Bases()
	if err != nil {
		return nil, 0, err
	}
	var failed error
	remove := func(id protocol.BaseID) {
		if err := cache.RemoveBase(id); err != nil {
			failed = errors.Join(failed, err)
			return
		}
		removed = append(removed, id)
	}
	for _, m := range list {
		if time.Since(usedAt(cache, m.ID)) < templateLife && cache.CheckBase(m.ID) == nil {
			continue
		}
		// Who looks for the template has the lock of its key.
		unlock, err := tryLock(filepath.Join(dir, filepath.Base(m.From.Template)+".lock"), unix.LOCK_EX)
		if unlock == nil {
			failed = errors.Join(failed, err)
			continue
		}
		if time.Since(usedAt(cache, m.ID)) >= templateLife || cache.CheckBase(m.ID) != nil {
			remove(m.ID)
		}
		unlock()
	}
	for _, d := range damaged {
		if protocol.CodeOf(d.Err) == protocol.CodeCheckpointLost { // else of a newer release
			remove(protocol.BaseID(d.ID))
		}
	}
	failed = errors.Join(failed, sweepTemplates(cache))
	return removed, cache.Freed(), failed
}

// usedAt is when a template was looked for last; the past for one that is not
// there.
func usedAt(s *checkpoint.Store, id protocol.BaseID) time.Time {
	files, err := s.BaseFiles(id)
	if err != nil {
		return time.Time{}
	}
	info, err := os.Stat(filepath.Dir(files.RAM))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// use notes that a template was looked for.
func use(s *checkpoint.Store, id protocol.BaseID) error {
	files, err := s.BaseFiles(id)
	if err != nil {
		return err
	}
	now := time.Now()
	return os.Chtimes(filepath.Dir(files.RAM), now, now)
}
