package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/ratoon-project/ratoon/protocol"
)

// archive reads a file or directory as a tar stream; - is one on standard
// input. done says whether it was whole.
func (g *global) archive(from string) (r io.Reader, done func() error, err error) {
	if from == "-" {
		return g.in, func() error { return nil }, nil
	}
	abs, err := filepath.Abs(from)
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Lstat(abs); err != nil {
		return nil, nil, protocol.Errorf(protocol.CodeInvalidArgument, "cp: %v", err)
	}
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(pw, abs)
		pw.CloseWithError(err)
		packed <- err
	}()
	return pr, func() error {
		pr.Close()
		if err := <-packed; !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
		return nil
	}, nil
}

// pack writes a tar of root under its own name.
func pack(w io.Writer, root string) error {
	out := tar.NewWriter(w)
	base := filepath.Base(root)
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return packOne(out, p, path.Join(base, filepath.ToSlash(rel)), info)
	})
	return errors.Join(err, out.Close())
}

func packOne(out *tar.Writer, from, name string, info fs.FileInfo) error {
	link := ""
	if info.Mode().Type() == fs.ModeSymlink {
		var err error
		if link, err = os.Readlink(from); err != nil {
			return err
		}
	} else if !info.Mode().IsRegular() && !info.IsDir() {
		return nil // sockets, pipes and devices stay here
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(out, f); err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	return nil
}

// unpack unpacks what a guest sends, in the directory to under a name: of a
// file its own, of a directory that of all in it. The guest's names are not
// trusted: nothing is written outside.
func unpack(r io.Reader, to, name string, dir bool) error {
	root, err := os.OpenRoot(to)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "cp: %v", err)
	}
	defer root.Close()
	if dir {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return protocol.Errorf(protocol.CodeInvalidArgument, "cp: %v", err)
		}
	}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		as := name
		if dir {
			as = name + "/" + h.Name
			h.Linkname = hardLink(h, name)
		}
		if err := unpackOne(root, in, h, path.Clean(as)); err != nil {
			return fmt.Errorf("write %s: %w", line(h.Name), err)
		}
	}
}

// hardLink is where a hard link of an archive points once it lies below name.
func hardLink(h *tar.Header, name string) string {
	if h.Typeflag == tar.TypeLink {
		return path.Clean(name + "/" + h.Linkname)
	}
	return h.Linkname
}

func unpackOne(root *os.Root, in io.Reader, h *tar.Header, name string) error {
	mode := h.FileInfo().Mode().Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, mode|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeSymlink:
		root.Remove(name)
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		root.Remove(name)
		return root.Link(h.Linkname, name)
	case tar.TypeReg:
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		return errors.Join(err, f.Close(), root.Chtimes(name, h.ModTime, h.ModTime))
	}
	return nil
}
