// Package framefile is a file of frames: compressed pieces of guest memory,
// each of one window of 64 KiB. The file is named by its content, so it is
// never written again and whoever has the same content has the same file.
//
//	w := framefile.NewWriter(out)
//	frame, err := w.Add(window, pages)
//	name, size, err := w.Finish()
//
//	f, err := framefile.Open(path, name)
//	pages, err := f.Read(frame, nil)
//
// What of a frame belongs to which checkpoint is host/checkpoint's to know.
// docs/CHECKPOINTS.md describes the bytes.
//
// Concurrency: a Writer belongs to one goroutine, a File is safe for concurrent
// use.
//
// Failure: the name is the digest of the index, and the index holds a digest of
// each frame, so no bit can change unseen by Verify. Errors about the content
// are *Damage and say at which byte.
package framefile
