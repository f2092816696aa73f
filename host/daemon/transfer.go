package daemon

import (
	"context"
	"io"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/host/machine"
	"github.com/ratoon-project/ratoon/protocol"
)

// ExportCheckpoint writes a checkpoint as a file for another host. Its own
// files are read before the first byte is written, so that damage of them is
// an error and no cut stream.
func (d *Daemon) ExportCheckpoint(ctx context.Context, id protocol.CheckpointID, w io.Writer) error {
	if err := d.store().Check(ctx, id); err != nil {
		return err
	}
	return d.store().Export(ctx, id, w)
}

// ImportCheckpoint reads such a file; fresh is false when the same checkpoint
// is here already. It stays that of its own sandbox, which this host may not
// have; any sandbox may start from it.
func (d *Daemon) ImportCheckpoint(ctx context.Context, r io.Reader) (m checkpoint.Manifest, fresh bool, err error) {
	return d.store().ImportFile(ctx, r)
}

// takeIn looks for a checkpoint in the directories of ended runs when it is not
// here, and takes it in from there.
func (d *Daemon) takeIn(ctx context.Context, machines *machine.Machines, id protocol.CheckpointID) error {
	if _, err := d.store().Get(id); protocol.CodeOf(err) != protocol.CodeUnknownCheckpoint {
		return err
	}
	paths, err := d.options.Dir.Paths()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if found, err := machines.Import(ctx, path, id); found || err != nil {
			return err
		}
	}
	return nil // whoever starts from it says that it is unknown
}
