// Package fork stops a guest's user processes for a capture and gives the
// machine its time and identity before they run again.
//
//	q := fork.NewQuiescer(fork.NewFreezer("/sys/fs/cgroup/user"), execs, files)
//	pos, err := q.Stop(ctx) // pre-sync, freeze, barrier, drain; undone on error
//	...                     // the machine is captured; perhaps this is a copy
//	err = fixer.Fix(thaw, newTimeline)
//	err = q.Go()            // unfreeze
//
// A Quiescer is used by one goroutine at a time. Stop ends promptly when its
// context does, with everything undone. Fix either applies all of a thaw or
// reports why not; the caller must leave the users frozen then.
package fork
