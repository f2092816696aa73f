package checkpoint

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ratoon-project/ratoon/host/checkpoint/framefile"
	"github.com/ratoon-project/ratoon/internal/fault"
	"github.com/ratoon-project/ratoon/protocol"
)

// pendingObject is a file of frames that is being written.
type pendingObject struct {
	store  *Store
	path   string
	file   *os.File
	out    *bufio.Writer
	frames *framefile.Writer
}

// labelled passes a label before each write.
type labelled struct {
	file  *os.File
	label string
}

// Write implements io.Writer.
func (l labelled) Write(b []byte) (int, error) {
	if err := fault.Point(l.label); err != nil {
		return 0, err
	}
	return l.file.Write(b)
}

func (s *Store) beginObject() (*pendingObject, error) {
	if err := fault.Point(labelObjectCreate); err != nil {
		return nil, err
	}
	p := &pendingObject{store: s, path: filepath.Join(s.temporary(), "object."+string(protocol.NewVMID()))}
	s.remember(p.path)
	var err error
	if p.file, err = os.OpenFile(p.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		s.forget(p.path)
		return nil, err
	}
	p.out = bufio.NewWriterSize(labelled{p.file, labelObjectWrite}, chunk)
	p.frames = framefile.NewWriter(p.out)
	return p, nil
}

// discard removes what was not published.
func (p *pendingObject) discard() {
	if p.file == nil {
		return
	}
	if err := errors.Join(p.file.Close(), removeIfThere(p.path)); err != nil {
		p.store.log.Warn("remove temporary file", "path", p.path, "error", err)
	}
	p.file = nil
	p.store.forget(p.path)
}

// publish makes it durable and gives it its name. Until release it is not
// swept. One of the same name has the same content, and is replaced.
func (p *pendingObject) publish() (o Object, release func(), err error) {
	defer p.discard()
	if o.Name, o.Size, err = p.frames.Finish(); err != nil {
		return o, nil, err
	}
	if err := errors.Join(p.out.Flush(), p.file.Chmod(fileMode)); err != nil {
		return o, nil, err
	}
	if err := syncPath(labelObjectSync, p.path); err != nil {
		return o, nil, err
	}
	release = p.store.hold(objectKey(o.Name))
	if err = rename(labelObjectRename, p.path, p.store.objectPath(o.Name)); err == nil {
		err = p.store.syncObjects()
	}
	if err != nil {
		release()
		return o, nil, err
	}
	return o, release, nil
}

func (s *Store) syncObjects() error {
	return errors.Join(syncPath(labelObjectDirSync, s.objects()), syncPath(labelObjectDirSync, s.dir))
}

// objectKey names an object among the things that are held.
func objectKey(name string) string { return "object " + name }

// holdObjects keeps objects from being swept until release.
func (s *Store) holdObjects(names []string) (release func()) {
	var all []func()
	for _, name := range names {
		all = append(all, s.hold(objectKey(name)))
	}
	return func() {
		for _, f := range all {
			f()
		}
	}
}

// references maps the names of objects to the checkpoints that they are part
// of. It is known to be false when a checkpoint is of a newer format.
func (s *Store) references() (refs map[string][]protocol.CheckpointID, known bool, err error) {
	names, err := entries(s.checkpoints())
	if err != nil {
		return nil, false, typed(protocol.CodeInternal, "list checkpoints", err)
	}
	refs = map[string][]protocol.CheckpointID{}
	for _, name := range names {
		id, err := protocol.ParseCheckpointID(name)
		if err != nil {
			continue
		}
		m, err := s.summary(id)
		switch {
		case err == nil:
			for _, o := range m.Files.Frames.names() {
				refs[o] = append(refs[o], id)
			}
		case errors.Is(err, errNewer):
			return nil, false, nil
		case !errors.Is(err, errDamaged) && protocol.CodeOf(err) != protocol.CodeUnknownCheckpoint:
			return nil, false, err // it may be read again
		}
	}
	return refs, true, nil
}

// SweepObjects removes the files of frames that no checkpoint is put together
// from, and nobody is about to name, and tells how many.
func (s *Store) SweepObjects() (int, error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	trash, err := s.detachObjects()
	for _, t := range trash {
		err = errors.Join(err, s.empty(t))
	}
	if err != nil {
		return len(trash), typed(protocol.CodeInternal, "sweep objects", err)
	}
	return len(trash), nil
}

func (s *Store) detachObjects() (trash []string, err error) {
	s.refs.Lock()
	defer s.refs.Unlock()
	names, err := entries(s.objects())
	if err != nil || len(names) == 0 {
		return nil, err
	}
	refs, known, err := s.references()
	if err != nil || !known {
		return nil, err
	}
	for _, name := range names {
		if framefile.ParseName(name) != nil || len(refs[name]) > 0 || s.held(objectKey(name)) {
			continue
		}
		to := s.trash("object")
		if err := rename(labelObjectRemove, s.objectPath(name), to); err != nil {
			return trash, fmt.Errorf("remove %s: %w", fileOfObject(name), err)
		}
		trash = append(trash, to)
	}
	return trash, nil
}
