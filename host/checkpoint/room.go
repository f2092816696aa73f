package checkpoint

import (
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// Room tells whether bytes more can be written while Options.Reserve stays
// free. It answers CodeDiskFull with "needed" and "free" in the details. Ask
// before a machine is paused.
func (s *Store) Room(bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return typed(protocol.CodeInternal, "look for free disk space", err)
	}
	free := int64(st.Bavail)*st.Bsize - s.reserve
	if bytes > free {
		return protocol.Errorf(protocol.CodeDiskFull, "%d bytes are needed in %s, %d can be used", bytes, s.dir, max(free, 0)).
			With("needed", bytes).With("free", max(free, 0))
	}
	return nil
}

// Use is a number of entries and the disk space their files take, in bytes. A
// file that is hard-linked from another store is counted here too.
type Use struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// Usage says what a store takes.
type Usage struct {
	Checkpoints Use `json:"checkpoints"`
	Bases       Use `json:"bases"`
	// Temporary is what is being written, and what Sweep would remove.
	Temporary Use `json:"temporary"`
}

// Usage adds up the disk space of a store.
func (s *Store) Usage() (Usage, error) {
	var u Usage
	for dir, use := range map[string]*Use{s.checkpoints(): &u.Checkpoints, s.bases(): &u.Bases, s.temporary(): &u.Temporary} {
		names, err := entries(dir)
		if err != nil {
			return Usage{}, typed(protocol.CodeInternal, "add up disk space", err)
		}
		use.Entries = len(names)
		for _, name := range names {
			use.Bytes += allocated(filepath.Join(dir, name))
		}
	}
	return u, nil
}

// allocated adds up blocks; what vanishes meanwhile counts nothing.
func allocated(dir string) int64 {
	var total int64
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && !d.IsDir() && unix.Lstat(path, &st) == nil {
			total += st.Blocks * 512
		}
		return nil
	})
	return total
}
