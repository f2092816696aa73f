package checkpoint

import (
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
)

// Room tells whether bytes more can be written while Options.Reserve stays
// free and Options.Limit is kept. It answers CodeDiskFull with "needed" and
// "free", or "limit" and "used", in the details. Ask before a machine is
// paused.
func (s *Store) Room(bytes int64) error {
	if err := s.free(bytes); err != nil || s.limit == 0 {
		return err
	}
	u, err := s.Usage()
	if err != nil {
		return err
	}
	if used := u.Total(); bytes > s.limit-used {
		return protocol.Errorf(protocol.CodeDiskFull, "checkpoints in %s take %d bytes of disk, and %d more would exceed the host's limit of %d", s.dir, used, bytes, s.limit).
			With("needed", bytes).With("limit", s.limit).With("used", used)
	}
	return nil
}

// free is Room without the limit, for what is needed to keep it.
func (s *Store) free(bytes int64) error {
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
	// Objects are the files of frames.
	Objects Use `json:"objects"`
	// Temporary is what is being written, and what Sweep would remove.
	Temporary Use `json:"temporary"`
}

// Total is all of it, in bytes.
func (u Usage) Total() int64 {
	return u.Checkpoints.Bytes + u.Bases.Bytes + u.Objects.Bytes + u.Temporary.Bytes
}

// Usage adds up the disk space of a store.
func (s *Store) Usage() (Usage, error) {
	var u Usage
	for dir, use := range map[string]*Use{s.checkpoints(): &u.Checkpoints, s.bases(): &u.Bases, s.objects(): &u.Objects, s.temporary(): &u.Temporary} {
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
func allocated(dir string) int64 { return blocks(dir, func(unix.Stat_t) bool { return true }) }

// freeable is what an unlink gives back: a file with another name gives none.
func freeable(dir string) int64 {
	return blocks(dir, func(st unix.Stat_t) bool { return st.Nlink == 1 })
}

// blocks adds up the files of a directory, in bytes, and those below.
func blocks(dir string, count func(unix.Stat_t) bool) int64 {
	var total int64
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && !d.IsDir() && unix.Lstat(path, &st) == nil && count(st) {
			total += st.Blocks * 512
		}
		return nil
	})
	return total
}
