package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// overlayFile is a file or directory put over the packages' files.
type overlayFile struct {
	name string // without a leading slash; a trailing one for directories
	mode int64
	uid  int
	data []byte
}

const distPackages = "usr/lib/python3/dist-packages/"

// builtinFiles are what the built-in image has besides packages.
func builtinFiles(opt BuiltinOptions) ([]overlayFile, error) {
	files := []overlayFile{
		{name: "workspace/", mode: 0o755},
		{name: "etc/hosts", mode: 0o644, data: []byte("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")},
		{name: "etc/default/locale", mode: 0o644, data: []byte("LANG=C.UTF-8\n")},
		// The root is a tmpfs over the image: what package managers keep for
		// a next time would take guest memory.
		{name: "etc/apt/apt.conf.d/90ratoon", mode: 0o644, data: []byte(
			"APT::Keep-Downloaded-Packages \"false\";\nAPT::Install-Recommends \"false\";\nDir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\n")},
		{name: "etc/pip.conf", mode: 0o644, data: []byte("[global]\nno-cache-dir = true\ndisable-pip-version-check = true\n")},
	}
	helper, err := helperFiles(opt)
	return append(files, helper...), err
}

// helperFiles lays the Python helper out as an installed distribution.
func helperFiles(opt BuiltinOptions) ([]overlayFile, error) {
	files := []overlayFile{{name: distPackages + "ratoon/", mode: 0o755}}
	if opt.Helper == nil {
		return files, nil
	}
	err := fs.WalkDir(opt.Helper, "ratoon", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "__pycache__" {
				return fs.SkipDir
			}
			if name != "ratoon" {
				files = append(files, overlayFile{name: distPackages + name + "/", mode: 0o755})
			}
			return nil
		}
		data, err := fs.ReadFile(opt.Helper, name)
		files = append(files, overlayFile{name: distPackages + name, mode: 0o644, data: data})
		return err
	})
	if err != nil {
		return nil, err
	}
	info := fmt.Sprintf("ratoon-%s.dist-info/", opt.HelperVersion)
	meta := fmt.Sprintf("Metadata-Version: 2.1\nName: ratoon\nVersion: %s\nSummary: Checkpoint, restore and branch the machine this program runs in\nRequires-Dist: msgpack\n", opt.HelperVersion)
	files = append(files,
		overlayFile{name: distPackages + info, mode: 0o755},
		overlayFile{name: distPackages + info + "METADATA", mode: 0o644, data: []byte(meta)},
		overlayFile{name: distPackages + info + "INSTALLER", mode: 0o644, data: []byte("ratoon\n")})
	return append(files, overlayFile{name: distPackages + info + "RECORD", mode: 0o644, data: record(files, info)}), nil
}

// record lists the installed files with digests, so that Python's
// importlib.metadata and pip know the distribution as whole.
func record(files []overlayFile, info string) []byte {
	var b strings.Builder
	for _, f := range files {
		if strings.HasSuffix(f.name, "/") {
			continue
		}
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", strings.TrimPrefix(f.name, distPackages), base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	fmt.Fprintf(&b, "%s,,\n", path.Join(info, "RECORD"))
	return []byte(b.String())
}

func writeOverlay(dst string, files []overlayFile) error {
	f, err := os.Create(dst)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	for _, file := range files {
		h := &tar.Header{Name: file.name, Mode: file.mode, Uid: file.uid, Gid: file.uid, Size: int64(len(file.data)),
			Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if strings.HasSuffix(file.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return errors.Join(err, f.Close())
		}
		if _, err := w.Write(file.data); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Close(), f.Close())
}
