// Package journal keeps the durable records of sandboxes in one bbolt file.
//
//	db, err := journal.Open(filepath.Join(dir, "journal.db"), journal.Options{})
//	sb, err := sandbox.Start(ctx, sandbox.Deps{Journal: db.Sandbox(id), ...}, spec)
//
// The lock of the file is also the lock of the host process that owns the
// state directory. Safe for concurrent use; transactions are one after
// another. A transaction is on disk when Update returns nil; after an error
// of the write itself it may or may not be, and the caller asks a later one.
package journal

import (
	"errors"
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// Options of Open.
type Options struct {
	// ReadOnly looks at a journal that no process owns. Any number of
	// processes may; the file must exist.
	ReadOnly bool
	// Existing does not make a journal.
	Existing bool
}

// DB is one open journal.
type DB struct{ db *bolt.DB }

// lockWait is how long Open waits for those who only look.
const lockWait = 100 * time.Millisecond

// Open opens or makes the journal. A journal that another process owns is
// CodeBusy; one that was removed meanwhile, or must exist and does not, is
// CodeNotFound.
func Open(path string, o Options) (*DB, error) {
	var file *os.File
	open := func(name string, flag int, perm os.FileMode) (*os.File, error) {
		if o.Existing || o.ReadOnly {
			flag &^= os.O_CREATE
		}
		var err error
		file, err = os.OpenFile(name, flag, perm)
		return file, err
	}
	if !o.Existing && !o.ReadOnly {
		if err := fault.Point("journal.create"); err != nil {
			return nil, fmt.Errorf("make journal %s: %w", path, err)
		}
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, ReadOnly: o.ReadOnly, OpenFile: open})
	switch {
	case errors.Is(err, bolt.ErrTimeout):
		return nil, protocol.Errorf(protocol.CodeBusy, "the journal %s belongs to a running host process", path)
	case errors.Is(err, os.ErrNotExist):
		return nil, protocol.Errorf(protocol.CodeNotFound, "no journal at %s", path)
	case err != nil:
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	// The owner before may have removed it while the lock was waited for.
	if !isAt(file, path) {
		return nil, errors.Join(protocol.Errorf(protocol.CodeNotFound, "no journal at %s", path), db.Close())
	}
	return &DB{db}, nil
}

func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(own, there)
}

// Close closes the file. Idempotent.
func (d *DB) Close() error { return d.db.Close() }

// Sandboxes lists the sandboxes that have records.
func (d *DB) Sandboxes() ([]protocol.SandboxID, error) {
	var out []protocol.SandboxID
	err := d.db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
			if string(name) != hostBucket {
				out = append(out, protocol.SandboxID(name))
			}
			return nil
		})
	})
	return out, err
}

// Remove removes the records of a sandbox that has nothing any more. It is
// done when there are none.
func (d *DB) Remove(id protocol.SandboxID) error {
	if err := fault.Point("journal.remove"); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	err := d.db.Update(func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(id)) })
	if err != nil && !errors.Is(err, bolt.ErrBucketNotFound) {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// Sandbox is the journal of one sandbox.
func (d *DB) Sandbox(id protocol.SandboxID) sandbox.Journal { return scoped{d.db, []byte(id)} }

// hostBucket is no sandbox's: its name is not an id.
const hostBucket = "host"

// Host is the journal of what belongs to no sandbox.
func (d *DB) Host() sandbox.Journal { return scoped{d.db, []byte(hostBucket)} }

type scoped struct {
	db *bolt.DB
	id []byte
}

var _ sandbox.Journal = scoped{}

// Update implements sandbox.Journal. The label is the fault point of the
// transaction: an error there stands for a write that failed.
func (s scoped) Update(label string, f func(sandbox.Tx) error) error {
	if err := fault.Point(label); err != nil {
		return err
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(s.id)
		if err != nil {
			return err
		}
		return f(txn{b})
	})
	if err != nil {
		return err
	}
	return fault.Point(label + ".after")
}

// View implements sandbox.Journal.
func (s scoped) View(f func(sandbox.Tx) error) error {
	return s.db.View(func(tx *bolt.Tx) error { return f(txn{tx.Bucket(s.id)}) })
}

// txn is one sandbox's bucket; its tables are nested buckets. The bucket is
// nil in a View before the first Update.
type txn struct{ b *bolt.Bucket }

func (t txn) table(name string) *bolt.Bucket {
	if t.b == nil {
		return nil
	}
	return t.b.Bucket([]byte(name))
}

// Get implements sandbox.Tx.
func (t txn) Get(table, key string) []byte {
	if b := t.table(table); b != nil {
		return b.Get([]byte(key))
	}
	return nil
}

// Put implements sandbox.Tx.
func (t txn) Put(table, key string, value []byte) error {
	b, err := t.b.CreateBucketIfNotExists([]byte(table))
	if err != nil {
		return err
	}
	return b.Put([]byte(key), value)
}

// Delete implements sandbox.Tx.
func (t txn) Delete(table, key string) error {
	if b := t.table(table); b != nil {
		return b.Delete([]byte(key))
	}
	return nil
}

// Each implements sandbox.Tx.
func (t txn) Each(table string, f func(key string, value []byte) error) error {
	b := t.table(table)
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, v []byte) error { return f(string(k), v) })
}
