package sandbox

import "github.com/ratoon-project/ratoon/protocol"

// Needed is what the committed operations, results and hibernated timelines in
// a sandbox's journal need, whether it runs or not. An operation that is under
// way is not in it yet: of a sandbox that runs, ask RemoveCheckpoint.
func Needed(j Journal) (map[protocol.CheckpointID]bool, error) {
	used := map[protocol.CheckpointID]bool{}
	err := j.View(func(tx Tx) error {
		ops, err := branches.all(tx)
		if err != nil {
			return err
		}
		for _, b := range ops {
			used[b.Checkpoint] = true
		}
		rs, err := restores.all(tx)
		if err != nil {
			return err
		}
		for _, r := range rs {
			used[r.Target] = true
			used[r.Kept] = true
		}
		res, err := results.all(tx)
		if err != nil {
			return err
		}
		for _, r := range res {
			used[r.Result.Checkpoint] = true
		}
		all, err := timelines.all(tx)
		for _, t := range all {
			if t.Hibernated != nil {
				used[t.Hibernated.Checkpoint] = true
			}
		}
		return err
	})
	return used, err
}
