package checkpoint

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
)

// Class says who keeps a checkpoint alive.
type Class string

// The classes of checkpoints.
const (
	// ClassNamed: asked for by a program or an operator; kept until removed.
	ClassNamed Class = "named"
	// ClassPinned: kept by an operator; removed only after it was unpinned.
	ClassPinned Class = "pinned"
	// ClassAuto: made by the host and listed; the last few are kept.
	ClassAuto Class = "auto"
	// ClassInternal: part of an operation; Sweep removes it once nothing
	// refers to it.
	ClassInternal Class = "internal"
)

// Manifest describes one checkpoint.
type Manifest struct {
	// Format is the version the manifest was read in; Publish ignores it.
	Format int `json:"-"`

	ID      protocol.CheckpointID `json:"id"`
	Class   Class                 `json:"class"`
	Label   string                `json:"label,omitempty"` // chosen by a guest: escape it where it is shown
	Created time.Time             `json:"created"`
	// Expires is when retention removes it, if it is not pinned; zero: it does
	// not expire.
	Expires time.Time `json:"expires,omitzero"`
	// Boot is the boot id of the host that published it: after another boot
	// what was not durable must pass Check before it is used.
	Boot string `json:"boot,omitempty"`

	Sandbox  protocol.SandboxID  `json:"sandbox"`
	Timeline protocol.TimelineID `json:"timeline"`
	Line     protocol.LineID     `json:"line"`
	Node     string              `json:"node,omitempty"`
	// Parent is the checkpoint from which the timeline came, if any.
	Parent protocol.CheckpointID `json:"parent,omitempty"`
	// Key names the call that the checkpoint answers; zero for an operator's.
	Key protocol.Key `json:"key,omitzero"`
	// Kind is the kind of that call.
	Kind   protocol.CallKind `json:"kind,omitempty"`
	Freeze protocol.Freeze   `json:"freeze"`

	DurableWanted bool                   `json:"durable_wanted,omitempty"`
	Durable       bool                   `json:"durable,omitempty"`
	Position      protocol.Position      `json:"position,omitzero"`
	Execs         []protocol.ExecOffsets `json:"execs,omitempty"`

	VMM             VMM     `json:"vmm"`
	Machine         Machine `json:"machine"`
	KernelDigest    string  `json:"kernel,omitempty"`
	InitrdDigest    string  `json:"initrd,omitempty"`
	ImageDigest     string  `json:"image,omitempty"`
	Release         string  `json:"release,omitempty"`
	ProtocolVersion int     `json:"protocol"`

	Base  protocol.BaseID `json:"base"`
	Files Files           `json:"files"`
	// Digest names the content (state, pages, run table, base); set once
	// durable, as "sha256:" and hex digits.
	Digest string `json:"digest,omitempty"`
}

// VMM is the program that can load the device state.
type VMM struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	CPUModel string `json:"cpu_model"`
	Accel    string `json:"accel"`
}

// Machine is the shape of the guest.
type Machine struct {
	MemoryBytes int64 `json:"memory_bytes"`
	CPUs        int   `json:"cpus"`
}

// Files describes the files beside the manifest.
type Files struct {
	State File  `json:"state"`
	Pages Pages `json:"pages"`
	// Frames say where the pages are when there is no pages file.
	Frames *Frames `json:"frames,omitempty"`
}

// File describes a file as a whole.
type File struct {
	Size   int64  `json:"size"` // bytes
	CRC32C uint32 `json:"crc32c"`
	SHA256 string `json:"sha256,omitempty"` // hex, once durable
}

// Pages describes the pages: the runs with data, in the table's order, one after
// another. They are the pages file, or what frames put together.
type Pages struct {
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256,omitempty"`
	Runs   Runs   `json:"runs"`
}

// Bytes is the size of the checkpoint's files; of frames those that it brought.
func (m Manifest) Bytes() int64 {
	if f := m.Files.Frames; f != nil {
		return m.Files.State.Size + f.Own
	}
	return m.Files.State.Size + m.Files.Pages.Size
}

var nodePattern = regexp.MustCompile(`^[0-9]+(\.[0-9]+)*$`)

// validate refuses what no release writes. Every identifier is checked, since
// callers make file names of them.
func (m Manifest) validate() error {
	if _, err := protocol.ParseCheckpointID(string(m.ID)); err != nil {
		return err
	}
	if _, err := protocol.ParseSandboxID(string(m.Sandbox)); err != nil {
		return err
	}
	if _, err := protocol.ParseTimelineID(string(m.Timeline)); err != nil {
		return err
	}
	if _, err := protocol.ParseLineID(string(m.Line)); err != nil {
		return err
	}
	if _, err := protocol.ParseBaseID(string(m.Base)); err != nil {
		return err
	}
	if err := m.validateOptionalIDs(); err != nil {
		return err
	}
	switch m.Class {
	case ClassNamed, ClassPinned, ClassAuto, ClassInternal:
	default:
		return protocol.Errorf(protocol.CodeInvalidArgument, "class %q is none of named, pinned, auto, internal", m.Class)
	}
	if len(m.Label) > protocol.MaxLabel {
		return protocol.Errorf(protocol.CodeTooLarge, "label of %d bytes, at most %d", len(m.Label), protocol.MaxLabel)
	}
	if m.Node != "" && !nodePattern.MatchString(m.Node) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "node %q is not a path of numbers", m.Node)
	}
	if m.Files.State.Size < 0 || m.Files.Pages.Size < 0 || m.Machine.MemoryBytes < 0 {
		return protocol.Errorf(protocol.CodeInvalidArgument, "a size is negative")
	}
	if err := m.Files.Pages.Runs.validate(); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%v", err)
	}
	if data := m.Files.Pages.Runs.Data(); data != m.Files.Pages.Size {
		return protocol.Errorf(protocol.CodeInvalidArgument, "runs hold %d bytes, the pages %d", data, m.Files.Pages.Size)
	}
	if err := m.Files.Frames.validate(m.Files.Pages); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "frames: %v", err)
	}
	return nil
}

func (m Manifest) validateOptionalIDs() error {
	if m.Parent != "" {
		if _, err := protocol.ParseCheckpointID(string(m.Parent)); err != nil {
			return err
		}
	}
	if !m.Key.IsZero() {
		if _, err := protocol.ParseTimelineID(string(m.Key.Timeline)); err != nil {
			return err
		}
	}
	if m.Position.Stream != "" {
		if _, err := protocol.ParseStreamID(string(m.Position.Stream)); err != nil {
			return err
		}
	}
	for _, e := range m.Execs {
		if _, err := protocol.ParseExecID(string(e.ID)); err != nil {
			return err
		}
	}
	return nil
}

// normalize makes m what reading it back will give.
func (m Manifest) normalize() Manifest {
	m.Format = FormatFlat
	if m.Files.Frames != nil {
		m.Format = FormatFrames
	}
	m.Label = strings.ToValidUTF8(m.Label, "\uFFFD")
	m.Created = m.Created.UTC().Round(0)
	if !m.Expires.IsZero() {
		m.Expires = m.Expires.UTC().Round(0)
	}
	return m
}

// Encode writes m as the content of a manifest file.
func (m Manifest) Encode() ([]byte, error) {
	m = m.normalize()
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	if m.Files.Frames == nil {
		return seal(kindCheckpoint, m)
	}
	f := *m.Files.Frames
	table := encodeTable(m.Files.Pages.Runs, f.pieces)
	f.Runs, f.Pieces = len(m.Files.Pages.Runs), len(f.pieces)
	m.Files.Frames, m.Files.Pages.Runs = &f, nil
	return sealTable(kindCheckpoint, FormatFrames, m, table)
}

// Decode reads the content of a manifest file and checks everything in it.
// Fields that this release does not know are ignored.
func Decode(data []byte) (Manifest, error) {
	var m Manifest
	format, table, err := unseal(kindCheckpoint, data, &m)
	if err == nil && (format == FormatFrames) != (m.Files.Frames != nil) {
		err = fmt.Errorf("%w: format %d with frames: %t", errDamaged, format, m.Files.Frames != nil)
	}
	if err == nil && m.Files.Frames != nil {
		err = m.decodeTable(table)
	}
	if err != nil {
		return Manifest{}, typed(protocol.CodeCheckpointLost, "read manifest", err)
	}
	m.Format = format
	if err := m.validate(); err != nil {
		return Manifest{}, protocol.Errorf(protocol.CodeCheckpointLost, "read manifest: %v", err)
	}
	return m, nil
}
