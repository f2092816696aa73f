package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ratoon-project/ratoon/internal/fault"
)

// fileID changes whenever a file's content may have: the kernel sets ctime at
// each write and truncation, and no call can set it back.
type fileID struct {
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime_ns"`
	Ctime int64  `json:"ctime_ns"`
}

func identify(path string) (fileID, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return fileID{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, fmt.Errorf("stat %s: no file identity", path)
	}
	return fileID{st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, nil
}

// writeStamp records the identities under which the files of dir were hashed,
// so that an unchanged 300 MB image is not hashed again at each start.
func writeStamp(dir string, files []FileSum) error {
	ids := make(map[string]fileID, len(files))
	for _, f := range files {
		id, err := identify(filepath.Join(dir, f.Name))
		if err != nil {
			return err
		}
		ids[f.Name] = id
	}
	b, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, fmt.Sprintf(".%s.%d", stampName, os.Getpid()))
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	if err := fault.Point("image:stamp.rename"); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, filepath.Join(dir, stampName))
}

// check compares the files with the manifest: by identity when the stamp knows
// them, else by digest.
func (e Entry) check() error {
	stamp := map[string]fileID{}
	if b, err := os.ReadFile(e.path(stampName)); err == nil {
		// A damaged stamp only costs hashing.
		_ = json.Unmarshal(b, &stamp)
	}
	stale := false
	for _, f := range e.Files {
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("manifest names a file outside: %q", f.Name)
		}
		id, err := identify(e.path(f.Name))
		if err != nil {
			return err
		}
		if id.Size != f.Size {
			return fmt.Errorf("%s has %d bytes, the manifest says %d", f.Name, id.Size, f.Size)
		}
		if stamp[f.Name] == id {
			continue
		}
		if err := e.checkSum(f); err != nil {
			return err
		}
		stale = true
	}
	if len(e.Files) == 0 {
		return fmt.Errorf("the manifest lists no file")
	}
	if stale {
		// Read-only caches stay without; they are hashed at each use.
		_ = writeStamp(e.Dir, e.Files)
	}
	return nil
}

func (e Entry) checkSum(f FileSum) error {
	_, sum, err := hashFile(e.path(f.Name))
	if err != nil {
		return err
	}
	if sum != f.SHA256 {
		return fmt.Errorf("%s has digest %s, the manifest says %s", f.Name, sum, f.SHA256)
	}
	return nil
}

// Verify hashes all files of an entry, whatever the stamp says.
func (e Entry) Verify() error {
	for _, f := range e.Files {
		if err := e.checkSum(f); err != nil {
			return fmt.Errorf("verify %s %s: %w", e.Kind, e.Digest(), err)
		}
	}
	return nil
}
