package checkpoint

import (
	"cmp"
	"slices"

	"github.com/ratoon-project/ratoon/protocol"
)

// TreeUse is the disk space of one sandbox's checkpoints, in bytes.
type TreeUse struct {
	Sandbox     protocol.SandboxID `json:"sandbox"`
	Checkpoints int                `json:"checkpoints"`
	// Own is what goes with its last checkpoint: their files, and the bases that
	// serve it only.
	Own int64 `json:"own_bytes"`
	// Shared is the bases that it needs together with others, and templates,
	// each in full.
	Shared int64 `json:"shared_bytes"`
}

// TreesUse is the disk space of a store by what needs it, in bytes.
type TreesUse struct {
	Trees []TreeUse `json:"trees"`
	// Shared is what the trees share, once.
	Shared int64 `json:"shared_bytes"`
	// Unused is the bases that no checkpoint needs: templates, and those that
	// machines map.
	Unused int64 `json:"unused_bytes"`
}

// Trees adds up the disk space of each sandbox's checkpoints, by sandbox.
func (s *Store) Trees() (TreesUse, error) {
	return s.trees(func(protocol.SandboxID) bool { return true })
}

// Tree adds up that of one sandbox.
func (s *Store) Tree(id protocol.SandboxID) (TreeUse, error) {
	all, err := s.trees(func(other protocol.SandboxID) bool { return other == id })
	for _, t := range all.Trees {
		if t.Sandbox == id {
			return t, err
		}
	}
	return TreeUse{Sandbox: id}, err
}

// trees looks at the files of the wanted ones only.
func (s *Store) trees(wanted func(protocol.SandboxID) bool) (TreesUse, error) {
	list, bad, err := s.List()
	if err != nil {
		return TreesUse{}, err
	}
	for _, d := range bad { // damaged, and takes its space
		if m, err := s.summary(protocol.CheckpointID(d.ID)); err == nil {
			list = append(list, m)
		}
	}
	trees := map[protocol.SandboxID]*TreeUse{}
	users := map[protocol.BaseID]map[*TreeUse]bool{}
	for _, m := range list {
		t := trees[m.Sandbox]
		if t == nil {
			t = &TreeUse{Sandbox: m.Sandbox}
			trees[m.Sandbox] = t
		}
		t.Checkpoints++
		if wanted(m.Sandbox) {
			t.Own += allocated(s.checkpointDir(m.ID))
		}
		if users[m.Base] == nil {
			users[m.Base] = map[*TreeUse]bool{}
		}
		users[m.Base][t] = true
	}
	out := TreesUse{Trees: []TreeUse{}}
	if err := s.addBases(&out, users); err != nil {
		return TreesUse{}, err
	}
	for _, t := range trees {
		if wanted(t.Sandbox) {
			out.Trees = append(out.Trees, *t)
		}
	}
	slices.SortFunc(out.Trees, func(a, b TreeUse) int { return cmp.Compare(a.Sandbox, b.Sandbox) })
	return out, nil
}

// addBases adds each base to the trees that use it.
func (s *Store) addBases(out *TreesUse, users map[protocol.BaseID]map[*TreeUse]bool) error {
	bases, _, err := s.Bases()
	if err != nil {
		return err
	}
	for _, b := range bases {
		n := allocated(s.baseDir(b.ID))
		switch by := users[b.ID]; {
		case len(by) == 0:
			out.Unused += n
		case len(by) == 1 && b.From.Template == "":
			for t := range by {
				t.Own += n
			}
		default:
			out.Shared += n
			for t := range by {
				t.Shared += n
			}
		}
	}
	return nil
}
