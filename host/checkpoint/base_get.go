package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/ratoon-project/ratoon/protocol"
)

// Base reads and checks the manifest of a base, and looks whether its files
// have the right sizes. A base that is not there is CodeCheckpointLost, since
// only what was made over it asks for it.
func (s *Store) Base(id protocol.BaseID) (BaseManifest, error) {
	if _, err := protocol.ParseBaseID(string(id)); err != nil {
		return BaseManifest{}, err
	}
	dir := s.baseDir(id)
	m, err := s.readBase(id)
	if err != nil {
		return BaseManifest{}, unusable(baseName(id), nameManifest, err)
	}
	if err := wantSize(filepath.Join(dir, nameRAM), m.RAM.Size); err != nil {
		return BaseManifest{}, unusable(baseName(id), nameRAM, err)
	}
	if m.State != nil {
		if err := wantSize(filepath.Join(dir, nameState), m.State.Size); err != nil {
			return BaseManifest{}, unusable(baseName(id), nameState, err)
		}
	}
	return m, nil
}

// readBase reads the manifest alone: once, as long as its file stays the same.
func (s *Store) readBase(id protocol.BaseID) (BaseManifest, error) {
	path := filepath.Join(s.baseDir(id), nameManifest)
	mark, err := fingerprintOf(path)
	if err != nil {
		return BaseManifest{}, err
	}
	s.mu.Lock()
	known, ok := s.baseManifests[id]
	s.mu.Unlock()
	if ok && known.mark == mark {
		return known.manifest, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return BaseManifest{}, err
	}
	m, err := decodeBase(data)
	if err == nil && m.ID != id {
		err = fmt.Errorf("%w: it is of %q", errDamaged, m.ID)
	}
	if err != nil {
		return BaseManifest{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.baseManifests[id] = summarized[BaseManifest]{mark, m}
	return m, nil
}

// BasePaths are the files of a base; State exists for templates only.
type BasePaths struct{ RAM, State string }

// BaseFiles says where the files of a base are. It does not look.
func (s *Store) BaseFiles(id protocol.BaseID) (BasePaths, error) {
	if _, err := protocol.ParseBaseID(string(id)); err != nil {
		return BasePaths{}, err
	}
	dir := s.baseDir(id)
	return BasePaths{RAM: filepath.Join(dir, nameRAM), State: filepath.Join(dir, nameState)}, nil
}

// Bases lists the bases, oldest first, and those that cannot be used.
func (s *Store) Bases() ([]BaseManifest, []Damaged, error) {
	names, err := entries(s.bases())
	if err != nil {
		return nil, nil, typed(protocol.CodeInternal, "list bases", err)
	}
	var out []BaseManifest
	var bad []Damaged
	for _, name := range names {
		id, err := protocol.ParseBaseID(name)
		if err != nil {
			continue
		}
		m, err := s.Base(id)
		if err == nil {
			out = append(out, m)
		} else if there, statErr := exists(s.baseDir(id)); statErr != nil || there {
			bad = append(bad, Damaged{name, err})
		}
	}
	slices.SortStableFunc(out, func(a, b BaseManifest) int { return a.Created.Compare(b.Created) })
	return out, bad, nil
}

// CheckBase tells whether a base can be used: it is there, its state has its
// crc32c, and it is durable or was published in this boot of the host.
func (s *Store) CheckBase(id protocol.BaseID) error {
	m, err := s.Base(id)
	if err != nil {
		return err
	}
	if !m.Durable && m.Boot != s.boot {
		return unusable(baseName(id), nameRAM, fmt.Errorf("%w: the host was booted again before it was durable", errDamaged))
	}
	if m.State != nil {
		if _, err := scanFile(context.Background(), filepath.Join(s.baseDir(id), nameState), *m.State); err != nil {
			return unusable(baseName(id), nameState, err)
		}
	}
	return nil
}
