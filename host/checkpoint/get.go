package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// Get reads and checks a manifest, and looks whether the files beside it have
// the right sizes; their content is for Check and Verify. An id that never was
// or was removed is CodeUnknownCheckpoint, one whose files are gone or damaged
// CodeCheckpointLost.
func (s *Store) Get(id protocol.CheckpointID) (Manifest, error) {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return Manifest{}, err
	}
	return s.settled(id, s.read)
}

// settled reads a manifest and looks whether its files have the right sizes. It
// reads again when the files went because the checkpoint was compacted, or
// because its frames were packed anew.
func (s *Store) settled(id protocol.CheckpointID, read func(protocol.CheckpointID) (Manifest, error)) (Manifest, error) {
	m, err := read(id)
	if err != nil {
		return Manifest{}, err
	}
	for {
		err := s.sizes(m)
		if err == nil {
			return m, nil
		}
		again, readErr := read(id)
		if readErr != nil || !errors.Is(err, fs.ErrNotExist) || again.storedAs(m) {
			return Manifest{}, s.gone(id, err)
		}
		m = again
	}
}

// steady calls f with the manifest of a checkpoint, and again when it failed
// while the checkpoint came to be stored in another way: what f looked for may
// have gone by that.
func (s *Store) steady(id protocol.CheckpointID, f func(Manifest) error) error {
	for {
		m, err := s.Get(id)
		if err != nil {
			return err
		}
		if err = f(m); err == nil {
			return nil
		}
		if again, readErr := s.read(id); readErr != nil || again.storedAs(m) {
			return err
		}
	}
}

// storedAs tells whether two manifests of one checkpoint name the same files.
func (m Manifest) storedAs(o Manifest) bool {
	return m.Base == o.Base && (m.Files.Frames == nil) == (o.Files.Frames == nil) && slices.Equal(m.Files.Frames.names(), o.Files.Frames.names())
}

// sizes looks whether the files of a checkpoint have the right sizes.
func (s *Store) sizes(m Manifest) error {
	id := m.ID
	dir := s.checkpointDir(id)
	if err := wantSize(filepath.Join(dir, nameState), m.Files.State.Size); err != nil {
		return unusable(checkpointName(id), nameState, err)
	}
	if m.Files.Frames == nil {
		if err := wantSize(filepath.Join(dir, namePages), m.Files.Pages.Size); err != nil {
			return unusable(checkpointName(id), namePages, err)
		}
		return nil
	}
	for _, o := range m.Files.Frames.Objects {
		if err := wantSize(s.objectPath(o.Name), o.Size); err != nil {
			return unusable(checkpointName(id), fileOfObject(o.Name), err)
		}
	}
	return nil
}

// read reads the manifest alone.
func (s *Store) read(id protocol.CheckpointID) (Manifest, error) {
	dir := s.checkpointDir(id)
	data, err := os.ReadFile(filepath.Join(dir, nameManifest))
	if err != nil {
		if there, statErr := exists(dir); statErr == nil && !there {
			return Manifest{}, s.absent(id)
		}
		return Manifest{}, unusable(checkpointName(id), nameManifest, err)
	}
	m, err := Decode(data)
	if err == nil && m.ID != id {
		err = fmt.Errorf("%w: it is of %q", errDamaged, m.ID)
	}
	if err != nil {
		return Manifest{}, unusable(checkpointName(id), nameManifest, err)
	}
	return m, nil
}

// absent says why an id has no directory.
func (s *Store) absent(id protocol.CheckpointID) error {
	reason, err := os.ReadFile(s.tombstone(id))
	if err == nil {
		return protocol.Errorf(protocol.CodeCheckpointLost, "%s: %s", checkpointName(id), strings.TrimSpace(string(reason)))
	}
	return protocol.Errorf(protocol.CodeUnknownCheckpoint, "%s does not exist", checkpointName(id))
}

// Paths are the files of a checkpoint. A compacted one has no pages file: read
// pages with OpenPages.
type Paths struct{ State, Pages string }

// Files says where the files of a checkpoint are. It does not look.
func (s *Store) Files(id protocol.CheckpointID) (Paths, error) {
	if _, err := protocol.ParseCheckpointID(string(id)); err != nil {
		return Paths{}, err
	}
	dir := s.checkpointDir(id)
	return Paths{State: filepath.Join(dir, nameState), Pages: filepath.Join(dir, namePages)}, nil
}

// Damaged is an entry that cannot be used.
type Damaged struct {
	ID  string
	Err error // names the file
}

// List reads all checkpoints, oldest first, as Get does, but without their run
// tables. What cannot be used is in the second list; names that are no ids are
// not looked at.
func (s *Store) List() ([]Manifest, []Damaged, error) {
	names, err := entries(s.checkpoints())
	if err != nil {
		return nil, nil, typed(protocol.CodeInternal, "list checkpoints", err)
	}
	var out []Manifest
	var bad []Damaged
	for _, name := range names {
		id, err := protocol.ParseCheckpointID(name)
		if err != nil {
			continue
		}
		m, err := s.settled(id, s.summary)
		switch {
		case err == nil:
			out = append(out, m)
		case errors.Is(err, &protocol.Error{Code: protocol.CodeUnknownCheckpoint}):
			// Removed since the directory was read.
		default:
			bad = append(bad, Damaged{name, err})
		}
	}
	slices.SortStableFunc(out, func(a, b Manifest) int { return a.Created.Compare(b.Created) })
	return out, bad, nil
}

// entries lists the names in a directory; none when there is no directory.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, nil
}
