// Package spool keeps the newest bytes of an endless stream on disk: the output
// of a program, or a log of events.
//
//	s, err := spool.Open(dir, spool.Options{Limit: 16 << 20})
//	s.Write(b)                                  // never waits for a reader
//	piece, err := s.Read(ctx, offset)           // waits until there is something at offset
//	err = s.Seal()                              // nothing follows: readers get io.EOF
//
// A byte's offset counts from the first ever written and never changes. The
// bytes lie in files named by the offset of their first one; the oldest file
// goes when all together are over the limit. So a spool is what its directory
// holds: nothing but the last write is lost with its process, and one that was
// torn is a shorter one.
//
// A disk that is full must not stop who writes: what could not be stored is
// left out, its offsets stay taken, and readers are told how much is missing,
// as they are of what was dropped.
//
// Safe for concurrent use by one process.
package spool
