package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// Of the snapshots whose sum is taken.
const (
	sumSnapshots = 20
	sumChanged   = 10 // MiB each
	sumTotal     = 100
)

// measureSum compares what many snapshots take on disk with what changed
// between them, and the speed of storing with that of plain compression.
func measureSum(ctx context.Context, l *lab, r *report) (err error) {
	b, err := l.open(ctx, 512, sandbox.Limits{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	n := l.pick(sumSnapshots, 8)
	g := b.python(ctx, "churn.py", fmt.Sprint(n), fmt.Sprint(sumChanged), fmt.Sprint(sumTotal))
	var ids []protocol.CheckpointID
	for range n {
		text, _, err := g.await(ctx, "level")
		if err != nil {
			return err
		}
		ids = append(ids, protocol.CheckpointID(strings.Fields(text)[1]))
	}
	store := b.engine.Stored()
	last, err := readPages(store, ids[n-1])
	if err != nil {
		return err
	}
	aside, err := l.storeOver(ctx, store, last.manifest.Base)
	if err != nil {
		return err
	}
	before, err := store.Usage()
	if err != nil {
		return err
	}
	flat, err := restores(ctx, b, ids[n-1], l.pick(7, 3))
	if err != nil {
		return err
	}
	began := time.Now()
	for _, id := range ids {
		if err := errors.Join(store.MakeDurable(ctx, id), store.Compact(ctx, id)); err != nil {
			return err
		}
	}
	took := time.Since(began)
	framed, err := restores(ctx, b, ids[n-1], l.pick(7, 3))
	if err != nil {
		return err
	}
	if err := b.engine.SweepBases(); err != nil {
		return err
	}
	after, err := store.Usage()
	if err != nil {
		return err
	}
	sum := float64(n * sumChanged << 20)
	flatBytes, frameBytes := float64(before.Checkpoints.Bytes), float64(after.Checkpoints.Bytes+after.Objects.Bytes)
	t := r.table(fmt.Sprintf("%d snapshots with %d MiB changed each", n, sumChanged), fmt.Sprintf("Guest of 512 MiB; random bytes at random places of %d MiB, which no compression makes smaller. On disk, without the template.\n"+
		"Made bases are whole copies of the guest's memory, where the file system has no reflinks.", sumTotal), "what", "bytes", "of the sum")
	for _, row := range []struct {
		what  string
		bytes float64
	}{
		{"sum of the changes", sum}, {"flat: checkpoints", flatBytes}, {"flat: bases made on the way", float64(before.Bases.Bytes - after.Bases.Bytes)},
		{"compacted: all", frameBytes}, {"of it device states and tables", float64(after.Checkpoints.Bytes)},
	} {
		t.add(row.what, mebibytes(row.bytes), times(row.bytes/sum))
	}
	r.figure(figure{name: fmt.Sprintf("disk for %d snapshots with %d MiB changed each, compacted", n, sumChanged), measured: mebibytes(frameBytes),
		baseline: mebibytes(sum) + " changed", ratio: times(frameBytes/sum) + " of it; flat " + times(flatBytes/sum)})
	r.figure(figure{name: "restore from frames", measured: millis(framed.median()), baseline: millis(flat.median()) + " from flat pages", ratio: times(ms(framed.median())/ms(flat.median())) + " of it"})
	return l.measureStoring(ctx, r, aside, last, n, took)
}

// restores replaces the machine by one from a checkpoint, several times.
func restores(ctx context.Context, b *box, id protocol.CheckpointID, n int) (all sample, err error) {
	for range n {
		began := time.Now()
		if err := b.sb.Restore(ctx, "", id, sandbox.RestoreOptions{DropPresent: true}); err != nil {
			return nil, err
		}
		all = append(all, time.Since(began))
	}
	return all, nil
}

// pages are those of a real machine.
type pages struct {
	manifest checkpoint.Manifest
	data     []byte
	state    []byte
}

func readPages(s *checkpoint.Store, id protocol.CheckpointID) (p pages, err error) {
	m, opened, err := s.OpenPages(id)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	files, err := s.Files(id)
	if err != nil {
		return p, err
	}
	p.manifest = m
	if p.state, err = os.ReadFile(files.State); err != nil {
		return p, err
	}
	p.data, err = io.ReadAll(opened.Reader())
	return p, err
}

// storeOver makes a store that has one base of another.
func (l *lab) storeOver(ctx context.Context, from *checkpoint.Store, base protocol.BaseID) (*checkpoint.Store, error) {
	dir, err := os.MkdirTemp(l.tmp, "store")
	if err != nil {
		return nil, err
	}
	s, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		return nil, err
	}
	return s, s.ImportBase(ctx, from, base)
}

// measureStoring stores the pages of a real checkpoint again, in each way.
func (l *lab) measureStoring(ctx context.Context, r *report, s *checkpoint.Store, p pages, n int, took time.Duration) error {
	var publish, durable, compact, plain sample
	for range l.pick(7, 3) {
		m := p.manifest
		m.ID, m.Sandbox = protocol.NewCheckpointID(), protocol.NewSandboxID()
		began := time.Now()
		if err := storePages(ctx, s, m, p); err != nil {
			return err
		}
		publish = append(publish, time.Since(began))
		began = time.Now()
		if err := s.MakeDurable(ctx, m.ID); err != nil {
			return err
		}
		durable = append(durable, time.Since(began))
		began = time.Now()
		if err := s.Compact(ctx, m.ID); err != nil {
			return err
		}
		compact = append(compact, time.Since(began))
		if err := s.Remove(m.ID); err != nil {
			return err
		}
		if _, err := s.SweepObjects(); err != nil {
			return err
		}
		began = time.Now()
		if err := plainZstd(filepath.Join(s.Dir(), "plain"), p.data); err != nil {
			return err
		}
		plain = append(plain, time.Since(began))
	}
	rate := func(d time.Duration) string {
		return fmt.Sprintf("%.0f MiB/s", float64(len(p.data))/(1<<20)/d.Seconds())
	}
	t := r.table("Storing pages", fmt.Sprintf("%s of a real machine, medians of %d. To compact reads the base and the pages, compresses them on one core and reads them\n"+
		"back to compare; %d snapshots of one sandbox took %s each.", mebibytes(float64(len(p.data))), len(plain), n, millis(took/time.Duration(n))), "step", "p50", "rate", "of plain zstd")
	for _, row := range []struct {
		what string
		s    sample
	}{{"publish", publish}, {"make durable", durable}, {"compact", compact}, {"plain zstd into a file, one core", plain}} {
		t.add(row.what, millis(row.s.median()), rate(row.s.median()), times(ms(row.s.median())/ms(plain.median())))
	}
	r.figure(figure{name: "publish of " + mebibytes(float64(len(p.data))), measured: rate(publish.median()), baseline: rate(plain.median()) + " plain zstd", ratio: times(ms(plain.median()) / ms(publish.median()))})
	r.figure(figure{name: "compaction of the same", measured: rate(compact.median()), baseline: rate(plain.median()) + " plain zstd", ratio: times(ms(plain.median()) / ms(compact.median()))})
	return nil
}

func storePages(ctx context.Context, s *checkpoint.Store, m checkpoint.Manifest, p pages) error {
	pending, err := s.Begin(m.ID)
	if err != nil {
		return err
	}
	defer pending.Discard()
	if err := errors.Join(os.WriteFile(pending.StatePath(), p.state, 0o600), os.WriteFile(pending.PagesPath(), p.data, 0o600)); err != nil {
		return err
	}
	return pending.Publish(ctx, m)
}

// plainZstd is what one would do without a store.
func plainZstd(path string, data []byte) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	_, err = io.Copy(w, bytes.NewReader(data))
	return errors.Join(err, w.Close())
}

// Of the checkpoints that are listed and collected.
const (
	manyCheckpoints = 1000
	manyRuns        = 256 // of each, 16 of them with a page
	manyBases       = 50  // made from checkpoints
)

// measureMany lists and collects many checkpoints.
func measureMany(ctx context.Context, l *lab, r *report) (err error) {
	n := l.pick(manyCheckpoints, 200)
	dir, err := os.MkdirTemp(l.tmp, "many")
	if err != nil {
		return err
	}
	s, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		return err
	}
	m, err := l.fillStore(ctx, s, n)
	if err != nil {
		return err
	}
	run, err := l.dir.NewRun()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.Remove()) }()
	journal := run.Journal.Sandbox(m.Sandbox)
	if err := recordSandbox(journal, m); err != nil {
		return err
	}
	var cold, warm, tree, plain sample
	for range l.pick(7, 3) {
		fresh, err := checkpoint.Open(dir, checkpoint.Options{ReadOnly: true})
		if err != nil {
			return err
		}
		began := time.Now()
		if err := list(fresh, n); err != nil {
			return err
		}
		cold = append(cold, time.Since(began))
		began = time.Now()
		if err := list(fresh, n); err != nil {
			return err
		}
		warm = append(warm, time.Since(began))
		began = time.Now()
		if err := drawTree(fresh, journal, m.Sandbox, n); err != nil {
			return err
		}
		tree = append(tree, time.Since(began))
		began = time.Now()
		if err := readManifests(dir); err != nil {
			return err
		}
		plain = append(plain, time.Since(began))
	}
	began := time.Now()
	c, err := s.Collect(ctx, checkpoint.CollectOptions{})
	if err != nil {
		return err
	}
	collect := time.Since(began)
	if len(c.Checkpoints) != n || len(c.Bases) != manyBases+1 {
		return fmt.Errorf("collected %d checkpoints and %d bases", len(c.Checkpoints), len(c.Bases))
	}
	remove, err := l.plainRemoval(n)
	if err != nil {
		return err
	}
	t := r.table(fmt.Sprintf("%d checkpoints", n), fmt.Sprintf("Of %d runs each. Cold: by a process that has read none of them yet, from the page cache. A collection removes all of them and\n"+
		"%d bases.", manyRuns, manyBases+1), "what", "took", "beside it", "ratio")
	t.add("list, cold", millis(cold.median()), millis(plain.median())+" to read the manifests", times(ms(cold.median())/ms(plain.median())))
	t.add("list, warm", millis(warm.median()), millis(plain.median())+" to read the manifests", times(ms(warm.median())/ms(plain.median())))
	t.add("tree, warm", millis(tree.median()), millis(plain.median())+" to read the manifests", times(ms(tree.median())/ms(plain.median())))
	t.add("gc of all", millis(collect), millis(remove)+" to remove such directories", times(ms(collect)/ms(remove)))
	r.figure(figure{name: fmt.Sprintf("list of %d checkpoints", n), measured: millis(warm.median()), baseline: millis(plain.median()) + " to read their manifests", ratio: times(ms(warm.median())/ms(plain.median())) + " of it; cold " + times(ms(cold.median())/ms(plain.median()))})
	r.figure(figure{name: fmt.Sprintf("gc of %d checkpoints", n), measured: millis(collect), baseline: millis(remove) + " to remove as many directories", ratio: times(ms(collect)/ms(remove)) + " of it"})
	return nil
}

// fillStore publishes n checkpoints of class internal of one sandbox; some over
// bases that were made from others.
func (l *lab) fillStore(ctx context.Context, s *checkpoint.Store, n int) (checkpoint.Manifest, error) {
	const ram = 16 << 20
	base := func(from checkpoint.Origin) (protocol.BaseID, error) {
		id := protocol.NewBaseID()
		p, err := s.BeginBase(id)
		if err != nil {
			return "", err
		}
		defer p.Discard()
		f, err := os.Create(p.RAMPath())
		if err != nil {
			return "", err
		}
		if err := errors.Join(f.Truncate(ram), f.Close()); err != nil {
			return "", err
		}
		return id, p.Publish(ctx, checkpoint.BaseManifest{ID: id, From: from})
	}
	root, err := base(checkpoint.Origin{})
	if err != nil {
		return checkpoint.Manifest{}, err
	}
	data, runs := tables(manyRuns)
	m := checkpoint.Manifest{Class: checkpoint.ClassInternal, Sandbox: protocol.NewSandboxID(), Timeline: protocol.NewTimelineID(), Line: protocol.NewLineID(),
		Node: "0", Freeze: 1, Base: root, Machine: checkpoint.Machine{MemoryBytes: ram, CPUs: 1}}
	m.Files.Pages.Runs = runs
	p := pages{data: data, state: make([]byte, 80<<10)}
	for i := range n {
		m.ID, m.Created = protocol.NewCheckpointID(), time.Now()
		if err := storePages(ctx, s, m, p); err != nil {
			return m, err
		}
		if i%(n/manyBases) == 0 {
			if _, err := base(checkpoint.Origin{Base: root, Checkpoint: m.ID}); err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

// tables makes a run table of n runs, and the pages of one in 16.
func tables(n int) (data []byte, runs checkpoint.Runs) {
	page := bytes.Repeat([]byte("ratoon! "), 512)
	sum := crc32.Checksum(page, crc32.MakeTable(crc32.Castagnoli))
	for i := range n {
		r := memory.Run{Offset: int64(i) * 16384, Length: 4096, Zero: i%16 != 0}
		if !r.Zero {
			r.CRC = sum
			data = append(data, page...)
		}
		runs = append(runs, r)
	}
	return data, runs
}

func recordSandbox(j sandbox.Journal, m checkpoint.Manifest) error {
	return j.Update("bench", func(tx sandbox.Tx) error {
		put := func(table, key string, v any) error {
			b, err := json.Marshal(v)
			return errors.Join(err, tx.Put(table, key, b))
		}
		return errors.Join(put("sandbox", string(m.Sandbox), sandbox.SandboxRecord{ID: m.Sandbox, FirstLine: m.Line, State: sandbox.StateStopped}),
			put("line", string(m.Line), sandbox.LineRecord{ID: m.Line, Node: "0", Timeline: m.Timeline}),
			put("timeline", string(m.Timeline), sandbox.TimelineRecord{ID: m.Timeline, Line: m.Line, State: sandbox.StateStopped}))
	})
}

func list(s *checkpoint.Store, want int) error {
	all, bad, err := s.List()
	if err == nil && (len(all) != want || len(bad) > 0) {
		err = fmt.Errorf("%d listed, %d damaged, want %d", len(all), len(bad), want)
	}
	return err
}

func drawTree(s *checkpoint.Store, j sandbox.Journal, id protocol.SandboxID, want int) error {
	all, _, err := s.List()
	if err != nil {
		return err
	}
	var own []sandbox.Checkpoint
	for _, m := range all {
		own = append(own, machine.Describe(m))
	}
	tree, err := sandbox.ReadTree(j, id, own)
	if err == nil && len(tree.Checkpoints) != want {
		err = fmt.Errorf("%d in the tree, want %d", len(tree.Checkpoints), want)
	}
	return err
}

// readManifests is the least that a cold list could do.
func readManifests(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "checkpoints", "*", "manifest"))
	for _, path := range paths {
		if _, readErr := os.ReadFile(path); readErr != nil {
			return readErr
		}
	}
	return err
}

// plainRemoval removes as many directories of as many files.
func (l *lab) plainRemoval(n int) (time.Duration, error) {
	dir := filepath.Join(l.tmp, "plain")
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprint(i))
		err := os.MkdirAll(sub, 0o700)
		for name, size := range map[string]int{"state": 80 << 10, "pages": 64 << 10, "manifest": 4 << 10} {
			err = errors.Join(err, os.WriteFile(filepath.Join(sub, name), make([]byte, size), 0o600))
		}
		if err != nil {
			return 0, err
		}
	}
	began := time.Now()
	for i := range n {
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprint(i))); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}
