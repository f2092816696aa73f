// Package files serves the host's operations on the guest's files: put, get,
// list, stat, remove, mkdir, tar-in and tar-out.
//
//	s := files.New(files.Config{Root: "/"})
//	s.Serve(ctx, request, stream) // one call per files stream of a link
//
//	err := s.Quiesce(ctx) // before a capture: no step on a file is under way
//	s.Resume()
//
// Paths are absolute and mean what they mean to a process whose root directory
// is Root: no "..", absolute symbolic link or /proc link leads out of it. get,
// list and tar-out follow a link at the end of the path; stat, put and remove
// mean the link itself. Within a tar archive links are content: an entry whose
// name would lead out of the directory given, by ".." or through a link, is
// refused.
//
// What put writes appears under its name whole, by rename, or not at all.
// tar-in replaces files one by one and keeps what an unfinished archive has
// brought. Neither calls fsync; the workspace's own fence does. tar-out leaves
// out sockets, pipes and devices, tar-in refuses them. Extended attributes are
// not carried.
//
// Every operation ends with one frame that has Done or Error. Content moves in
// pieces of at most 64 KiB, so that memory does not grow with sizes; a
// directory is listed in the order it is read. At most 32 operations run at
// once, more are refused with CodeBusy.
//
// Quiesce refuses new operations, and those under way stop before their next
// step on a file until Resume; they are not lost if the capture fails. In a
// copy of the machine their link is gone, so after Resume they end and clean
// up; until then their Serve may not return. A step is short: one piece, one directory read, one entry of a tree.
//
// A Server may be used from any goroutine. It keeps no descriptor open between
// operations.
package files
