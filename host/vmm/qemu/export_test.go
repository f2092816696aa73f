package qemu

import (
	"context"
	"net"
	"time"
)

// QMP is the client, for tests against a server of their own.
type QMP struct{ *qmp }

func NewQMP(ctx context.Context, conn *net.UnixConn, timeout time.Duration, on func(name string)) (QMP, error) {
	q, err := newQMP(ctx, conn, timeout, func(e event) { on(e.Name) })
	return QMP{q}, err
}

func (q QMP) Execute(ctx context.Context, command string, out any) error {
	return q.execute(ctx, command, nil, out)
}

func (q QMP) Close() error { return q.close() }

var (
	ErrQMPClosed = errQMPClosed
	MaxLine      = maxLine
	RAMRegions   = ramRegions
)

// ParseVersion gives text and whether it is at least 8.2.
func ParseVersion(s string) (text string, readOnly bool, err error) {
	v, err := parseVersion([]byte(s))
	return v.text, v.atLeast(8, 2), err
}

func Option(kind string, namesAndValues ...string) string {
	var pairs []pair
	for i := 0; i < len(namesAndValues); i += 2 {
		pairs = append(pairs, pair{namesAndValues[i], namesAndValues[i+1]})
	}
	return option(kind, pairs...)
}

// TailOf writes the pieces to a tail of that size.
func TailOf(size int, pieces ...string) string {
	t := newTail(size)
	for _, p := range pieces {
		t.Write([]byte(p))
	}
	return string(t.bytes())
}

// LoadArgs and BootArgs are command lines of a machine with all options.
func LoadArgs(readOnly bool) []string {
	m := example()
	m.ramReadOnly = readOnly
	return m.args()
}

func BootArgs() []string {
	m := example()
	m.ramShared, m.boot = true, &bootFiles{kernel: 20, initrd: 21, cmdline: "a=b,c d"}
	return m.args()
}

func example() *machine {
	return &machine{
		accel: "tcg", cpu: "max", translationMiB: 32, cpus: 2, memory: 256 << 20,
		ram: 3, qmp: 4, control: 5, bulk: 6, rootfs: 7, console: 8,
	}
}
