// Package keep holds what must outlive agentd's worker: a Record, kept by
// PID 1 and handed to each new worker.
//
// The worker calls Client.Keep before it acts on a freeze or a thaw, and goes
// on when PID 1 has answered:
//
//	c, first, err := keep.Dial(os.NewFile(3, "keeper"))
//	rec := first.Record
//	rec.Seen = 7
//	err = c.Keep(rec) // PID 1 has it now
//
// PID 1 runs one Serve for each worker, over a socket pair; the worker's end
// closes with the worker. A Client is safe for concurrent use. If Keep fails,
// PID 1 is gone or confused and the worker must not act.
package keep
