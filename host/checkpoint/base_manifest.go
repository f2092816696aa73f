package checkpoint

import (
	"encoding/json"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// BaseManifest describes one base.
type BaseManifest struct {
	// Format is the version the manifest was read in; Publish ignores it.
	Format int `json:"-"`

	ID      protocol.BaseID `json:"id"`
	Created time.Time       `json:"created"`
	// Boot is the boot id of the host that published it. A base that is not
	// durable ends with that boot.
	Boot    string `json:"boot,omitempty"`
	From    Origin `json:"from"`
	Durable bool   `json:"durable,omitempty"`

	RAM BaseRAM `json:"ram"`
	// State is the device state beside the RAM, for templates.
	State *File `json:"state,omitempty"`
	// Meta is what the maker wants to know when it uses the base again.
	Meta json.RawMessage `json:"meta,omitempty"`
}

// BaseRAM describes the RAM file. It has no crc32c, since the file is large
// and made in the way of a branch: what is not durable is trusted only within
// one boot of the host.
type BaseRAM struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	// Blocks say where damage is; once durable.
	Blocks *Blocks `json:"blocks,omitempty"`
}

// Blocks are the checksums of equal pieces of a file, of which the last may be
// shorter.
type Blocks struct {
	Size   int64    `json:"size"` // bytes of each, whole MiB
	CRC32C []uint32 `json:"crc32c"`
}

// Origin says what a base was made from: a template's key, or a checkpoint
// and the base under it.
type Origin struct {
	Template   string                `json:"template,omitempty"`
	Base       protocol.BaseID       `json:"base,omitempty"`
	Checkpoint protocol.CheckpointID `json:"checkpoint,omitempty"`
}

func (m BaseManifest) validate() error {
	if _, err := protocol.ParseBaseID(string(m.ID)); err != nil {
		return err
	}
	if m.From.Base != "" {
		if _, err := protocol.ParseBaseID(string(m.From.Base)); err != nil {
			return err
		}
	}
	if m.From.Checkpoint != "" {
		if _, err := protocol.ParseCheckpointID(string(m.From.Checkpoint)); err != nil {
			return err
		}
	}
	if !m.RAM.Blocks.validate(m.RAM.Size) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the blocks do not fit %d bytes", m.RAM.Size)
	}
	if m.RAM.Size <= 0 || m.State != nil && m.State.Size < 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "a size is not positive")
	}
	return nil
}

func decodeBase(data []byte) (BaseManifest, error) {
	var m BaseManifest
	format, _, err := unseal(kindBase, data, &m)
	if err != nil {
		return BaseManifest{}, typed(protocol.CodeCheckpointLost, "read manifest", err)
	}
	m.Format = format
	if err := m.validate(); err != nil {
		return BaseManifest{}, protocol.Errorf(protocol.CodeCheckpointLost, "read manifest: %v", err)
	}
	return m, nil
}
