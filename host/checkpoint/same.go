package checkpoint

import (
	"context"
	"errors"
	"reflect"

	"github.com/ratoon-project/ratoon/protocol"
)

// Same compares the checkpoint of an id in two stores, byte by byte where
// their digests do not tell. CodeConflict says what differs.
func Same(ctx context.Context, a, b *Store, id protocol.CheckpointID) (err error) {
	x, err := a.content(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	y, err := b.content(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.Close()) }()
	return same(ctx, x, y)
}

// same compares what a checkpoint is for ever. Its class, and how it is stored,
// may change.
func same(ctx context.Context, a, b *content) error {
	m := a.manifest
	differs := func(what string) error {
		return protocol.Errorf(protocol.CodeConflict, "%s is here with another %s", checkpointName(m.ID), what)
	}
	x, y := m.lasting(), b.manifest.lasting()
	if !reflect.DeepEqual(x, y) {
		return differs("description")
	}
	if f, g := m.Files.State, b.manifest.Files.State; f.Size != g.Size || f.CRC32C != g.CRC32C {
		return differs("device state")
	}
	if m.Digest != "" && m.Digest == b.manifest.Digest {
		return nil
	}
	equal, err := sameMemory(ctx, a.memory(), b.memory())
	if err != nil {
		return typed(protocol.CodeInternal, "compare "+checkpointName(m.ID), err)
	}
	if !equal {
		return differs("memory")
	}
	return nil
}

// lasting is m without what may change, and without its files.
func (m Manifest) lasting() Manifest {
	m.Class, m.Label, m.Boot, m.Durable, m.DurableWanted, m.Digest = "", "", "", false, false, ""
	m.Base, m.Files, m.Format = "", Files{}, 0
	if len(m.Execs) == 0 {
		m.Execs = nil
	}
	return m
}
