package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/mdlayher/vsock"

	"github.com/ratoon-project/ratoon/protocol"
)

var (
	_ Carrier = (*UnixDialer)(nil)
	_ Carrier = (*HybridDialer)(nil)
	_ Carrier = (*VsockDialer)(nil)
)

// UnixDialer connects to a unix socket per channel: the host's end of QEMU's
// virtio-serial ports.
type UnixDialer struct {
	Control, Bulk string // paths
}

// Open connects to the socket of ch.
func (d *UnixDialer) Open(ctx context.Context, ch Channel) (net.Conn, error) {
	path := d.Control
	if ch == Bulk {
		path = d.Bulk
	}
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

func vsockPort(ch Channel) uint32 {
	if ch == Bulk {
		return protocol.PortBulk
	}
	return protocol.PortControl
}

// HybridDialer reaches a guest's AF_VSOCK ports through the unix socket of
// Cloud Hypervisor or Firecracker.
type HybridDialer struct {
	Path string
}

// Open connects, asks for the port of ch, and waits for the answer. The VMM
// closes the connection when nobody listens in the guest.
func (d *HybridDialer) Open(ctx context.Context, ch Channel) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", d.Path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(past) })
	err = hybridConnect(conn, vsockPort(ch))
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// hybridConnect speaks "CONNECT port\n", "OK port\n". The answer is read byte
// by byte, since what follows it belongs to the guest.
func hybridConnect(conn net.Conn, port uint32) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return fmt.Errorf("ask for port %d: %w", port, err)
	}
	line := make([]byte, 0, 32)
	for !bytes.HasSuffix(line, []byte("\n")) {
		if len(line) == cap(line) {
			return fmt.Errorf("ask for port %d: unexpected answer %q", port, line)
		}
		n, err := conn.Read(line[len(line) : len(line)+1])
		line = line[:len(line)+n]
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("ask for port %d: nobody listens in the guest", port)
		}
		if err != nil {
			return fmt.Errorf("ask for port %d: %w", port, err)
		}
	}
	if !bytes.HasPrefix(line, []byte("OK ")) {
		return fmt.Errorf("ask for port %d: unexpected answer %q", port, line)
	}
	return nil
}

// VsockDialer connects to a guest over the host kernel's AF_VSOCK.
type VsockDialer struct {
	CID uint32
}

// Open connects to the port of ch.
func (d *VsockDialer) Open(ctx context.Context, ch Channel) (net.Conn, error) {
	conn, err := vsock.DialContext(ctx, d.CID, vsockPort(ch), nil)
	if err != nil {
		return nil, err
	}
	return conn, nil
}
