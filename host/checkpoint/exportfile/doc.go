// Package exportfile is the file in which a checkpoint travels between hosts:
// a line that names the format, records of compressed content, and an end that
// holds a digest of everything before it.
//
//	w := exportfile.NewWriter(file)
//	err := w.Write(exportfile.Manifest, 0, manifest)    // and the other parts, in order
//	err = w.Close()
//
//	r := exportfile.NewReader(file)
//	for {
//		c, err := r.Next()
//		if err == io.EOF {
//			break // only now is the file known to be whole
//		}
//		...
//	}
//
// It knows the order of the parts and that nothing is missing, and leaves to
// host/checkpoint what they mean. docs/CHECKPOINTS.md describes the bytes.
//
// Concurrency: a Reader or a Writer belongs to one goroutine.
//
// Failure: a file that is cut short, damaged or out of order is
// protocol.CodeInvalidArgument, one of a newer format CodeCheckpointRefused;
// the message and the detail "offset" say at which byte. A reader never has
// more than MaxContent bytes of content, whatever a file claims.
package exportfile
