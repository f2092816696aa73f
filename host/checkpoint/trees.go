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
	// Own is what goes with its last checkpoint: their files, and the bases and
	// frames that serve it only.
	Own int64 `json:"own_bytes"`
	// Shared is the bases and frames that it needs together with others, and
	// templates, each in full.
	Shared int64 `json:"shared_bytes"`
}

// TreesUse is the disk space of a store by what needs it, in bytes.
type TreesUse struct {
	Trees []TreeUse `json:"trees"`
	// Shared is what the trees share, once.
	Shared int64 `json:"shared_bytes"`
	// Unused is the bases and frames that no checkpoint needs: templates, bases
	// that machines map, and what the next Collect takes.
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
	users := map[string]map[*TreeUse]bool{} // of bases and objects
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
		for _, shared := range append(m.Files.Frames.names(), string(m.Base)) {
			if users[shared] == nil {
				users[shared] = map[*TreeUse]bool{}
			}
			users[shared][t] = true
		}
	}
	out := TreesUse{Trees: []TreeUse{}}
	if err := s.addShared(&out, users); err != nil {
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

// addShared adds each base and object to the trees that use it.
func (s *Store) addShared(out *TreesUse, users map[string]map[*TreeUse]bool) error {
	bases, _, err := s.Bases()
	if err != nil {
		return err
	}
	objects, err := entries(s.objects())
	if err != nil {
		return typed(protocol.CodeInternal, "list objects", err)
	}
	for _, b := range bases {
		out.add(allocated(s.baseDir(b.ID)), users[string(b.ID)], b.From.Template != "")
	}
	for _, name := range objects {
		out.add(allocated(s.objectPath(name)), users[name], false)
	}
	return nil
}

// add adds n bytes to those who use them.
func (u *TreesUse) add(n int64, by map[*TreeUse]bool, template bool) {
	switch {
	case len(by) == 0:
		u.Unused += n
	case len(by) == 1 && !template:
		for t := range by {
			t.Own += n
		}
	default:
		u.Shared += n
		for t := range by {
			t.Shared += n
		}
	}
}
