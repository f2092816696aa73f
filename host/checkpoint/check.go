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

	"github.com/ratoon-project/ratoon/protocol"
)

// Check reads a checkpoint whole: sizes, the state's crc32c and the crc32c of
// every run, and the strong digests of both files if it is durable; of its base
// that it is there and was either durable or published in this boot of the
// host. It is what must pass after a host reboot before a checkpoint that was
// not durable is used.
func (s *Store) Check(ctx context.Context, id protocol.CheckpointID) error {
	return s.steady(id, func(m Manifest) error {
		if err := s.CheckBase(m.Base); err != nil {
			return fmt.Errorf("%s: %w", checkpointName(id), err)
		}
		_, err := s.scan(ctx, id, io.Discard)
		return err
	})
}

// Verify does what Check does, and holds the content as a whole and the base to
// their strong digests. A checkpoint that is not durable has none: it is
// refused with CodeInvalidArgument.
func (s *Store) Verify(ctx context.Context, id protocol.CheckpointID) error {
	return s.steady(id, func(m Manifest) error {
		if !m.Durable {
			return protocol.Errorf(protocol.CodeInvalidArgument, "%s is not durable and has no strong digests", checkpointName(id))
		}
		if err := s.Check(ctx, id); err != nil {
			return err
		}
		if err := s.VerifyBase(ctx, m.Base); err != nil {
			return fmt.Errorf("%s: %w", checkpointName(id), err)
		}
		return nil
	})
}

// digests are the sha256 of a checkpoint's files, in hex.
type digests struct{ state, pages string }

// scan reads the files of a checkpoint once and holds them to their checksums.
// also gets what is read.
func (s *Store) scan(ctx context.Context, id protocol.CheckpointID, also io.Writer) (digests, error) {
	c, err := s.files(id)
	if err != nil {
		return digests{}, err
	}
	got, err := c.scan(ctx, also)
	return got, errors.Join(err, c.Close())
}

func (c *content) scan(ctx context.Context, also io.Writer) (got digests, err error) {
	if got.state, err = c.scanState(ctx, also); err != nil {
		return got, err
	}
	if got.pages, err = c.scanPages(ctx, also); err != nil {
		return got, err
	}
	m := c.manifest
	if d := m.contentDigest(); m.Durable && d != m.Digest {
		return got, unusable(checkpointName(m.ID), nameManifest, damagedAt(0, "digest %s, want %s", d, m.Digest))
	}
	return got, nil
}

// scanState reads the device state to its end.
func (c *content) scanState(ctx context.Context, also io.Writer) (string, error) {
	digest, err := c.manifest.Files.State.scan(ctx, c.state, also)
	if err != nil {
		return "", unusable(checkpointName(c.manifest.ID), nameState, err)
	}
	return digest, nil
}

// scanPages reads the pages to their end.
func (c *content) scanPages(ctx context.Context, also io.Writer) (string, error) {
	want := c.manifest.Files.Pages
	strong := sha256.New()
	err := c.scanSize()
	if err == nil {
		err = scanRuns(ctx, io.NewSectionReader(c.pages, 0, want.Size), want.Runs, io.MultiWriter(strong, also))
	}
	if got := hexSum(strong); err == nil && want.SHA256 != "" && want.SHA256 != got {
		err = damagedAt(0, "sha256 %s, want %s", got, want.SHA256)
	}
	if err != nil {
		return "", unusable(checkpointName(c.manifest.ID), namePages, err)
	}
	return hexSum(strong), nil
}

func scanFile(ctx context.Context, path string, want File) (string, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return "", err
	}
	digest, err := want.scan(ctx, f, io.Discard)
	return digest, errors.Join(err, f.Close())
}

// scan reads a file to its end, holds it to its checksums, and returns its
// sha256.
func (f File) scan(ctx context.Context, r io.Reader, also io.Writer) (string, error) {
	strong, sum := sha256.New(), crc32.New(castagnoli)
	n, err := copyContext(ctx, io.MultiWriter(strong, sum, also), r)
	got := hexSum(strong)
	switch {
	case err != nil:
		return "", err
	case n != f.Size || sum.Sum32() != f.CRC32C:
		return "", damagedAt(0, "%d bytes with crc32c %08x, want %d with %08x", n, sum.Sum32(), f.Size, f.CRC32C)
	case f.SHA256 != "" && f.SHA256 != got:
		return "", damagedAt(0, "sha256 %s, want %s", got, f.SHA256)
	}
	return got, nil
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
		if d, ok := errors.AsType[*damage](err); ok {
			d.offset += at
		}
		if err != nil {
			return err
		}
		if n != run.Length || sum.Sum32() != run.CRC {
			return damagedAt(at, "run %d of %d bytes, guest memory from %#x on, has crc32c %08x in %d bytes, want %08x",
				i, run.Length, run.Offset, sum.Sum32(), n, run.CRC)
		}
		at += n
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
