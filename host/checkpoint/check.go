package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"path/filepath"

	"github.com/ratoon-project/ratoon/protocol"
)

// Check reads a checkpoint whole: sizes, the state's crc32c and the crc32c of
// every run; of its base that it is there and was either durable or published
// in this boot of the host. It is what must pass after a host reboot before a
// checkpoint that was not durable is used.
func (s *Store) Check(ctx context.Context, id protocol.CheckpointID) error {
	m, err := s.Get(id)
	if err != nil {
		return err
	}
	if err := s.CheckBase(m.Base); err != nil {
		return fmt.Errorf("%s: %w", checkpointName(id), err)
	}
	_, err = s.scan(ctx, m)
	return err
}

// Verify does what Check does, and holds the files and the base to their
// strong digests. A checkpoint that is not durable has none: it is refused
// with CodeInvalidArgument.
func (s *Store) Verify(ctx context.Context, id protocol.CheckpointID) error {
	m, err := s.Get(id)
	if err != nil {
		return err
	}
	if !m.Durable {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s is not durable and has no strong digests", checkpointName(id))
	}
	got, err := s.scan(ctx, m)
	if err != nil {
		return err
	}
	for _, f := range []struct{ name, got, want string }{
		{nameState, got.state, m.Files.State.SHA256},
		{namePages, got.pages, m.Files.Pages.SHA256},
	} {
		if f.got != f.want {
			return unusable(checkpointName(id), f.name, fmt.Errorf("%w: sha256 %s, want %s", errDamaged, f.got, f.want))
		}
	}
	m.Files.State.SHA256, m.Files.Pages.SHA256 = got.state, got.pages
	if d := m.contentDigest(); d != m.Digest {
		return unusable(checkpointName(id), nameManifest, fmt.Errorf("%w: digest %s, want %s", errDamaged, d, m.Digest))
	}
	if err := s.VerifyBase(ctx, m.Base); err != nil {
		return fmt.Errorf("%s: %w", checkpointName(id), err)
	}
	return nil
}

// digests are the sha256 of a checkpoint's files, in hex.
type digests struct{ state, pages string }

// scan reads both files once, holding them to their crc32c.
func (s *Store) scan(ctx context.Context, m Manifest) (digests, error) {
	dir := s.checkpointDir(m.ID)
	state, err := scanFile(ctx, filepath.Join(dir, nameState), m.Files.State)
	if err != nil {
		return digests{}, s.gone(m.ID, unusable(checkpointName(m.ID), nameState, err))
	}
	pages, err := scanPages(ctx, filepath.Join(dir, namePages), m.Files.Pages.Runs)
	if err != nil {
		return digests{}, s.gone(m.ID, unusable(checkpointName(m.ID), namePages, err))
	}
	return digests{state, pages}, nil
}

func scanFile(ctx context.Context, path string, want File) (string, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return "", err
	}
	strong, sum := sha256.New(), crc32.New(castagnoli)
	n, err := copyContext(ctx, io.MultiWriter(strong, sum), f)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	if n != want.Size || sum.Sum32() != want.CRC32C {
		return "", fmt.Errorf("%w: %d bytes with crc32c %08x, want %d with %08x", errDamaged, n, sum.Sum32(), want.Size, want.CRC32C)
	}
	return hexSum(strong), nil
}

func scanPages(ctx context.Context, path string, runs Runs) (string, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return "", err
	}
	strong := sha256.New()
	err = scanRuns(ctx, f, runs, strong)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	return hexSum(strong), nil
}

func scanRuns(ctx context.Context, r io.Reader, runs Runs, also io.Writer) error {
	sum := crc32.New(castagnoli)
	var at int64
	for i, run := range runs {
		if run.Zero {
			continue
		}
		sum.Reset()
		n, err := copyContext(ctx, io.MultiWriter(sum, also), io.LimitReader(r, run.Length))
		if err != nil {
			return err
		}
		if n != run.Length || sum.Sum32() != run.CRC {
			return fmt.Errorf("%w: run %d at byte %d: %d bytes with crc32c %08x, want %d with %08x",
				errDamaged, i, at, n, sum.Sum32(), run.Length, run.CRC)
		}
		at += n
	}
	if n, err := io.ReadFull(r, make([]byte, 1)); err != io.EOF {
		return errors.Join(fmt.Errorf("%w: %d bytes after the last run", errDamaged, n), err)
	}
	return nil
}

func hexSum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// contentDigest names what a restore would load; label, class and the like
// are not part of it.
func (m Manifest) contentDigest() string {
	h := sha256.New()
	fmt.Fprintf(h, "ratoon checkpoint 1\nbase %s\nstate %s\npages %s\n", m.Base, m.Files.State.SHA256, m.Files.Pages.SHA256)
	for _, r := range m.Files.Pages.Runs {
		fmt.Fprintf(h, "run %d %d %t\n", r.Offset, r.Length, r.Zero)
	}
	return "sha256:" + hexSum(h)
}
