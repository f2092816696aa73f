// Package link makes a link between host and guest out of two raw byte
// connections, control and bulk, whatever carries them: AF_VSOCK, the hybrid
// socket of Cloud Hypervisor, virtio-serial of QEMU, or plain unix sockets.
//
//	l, err := link.Connect(ctx, &link.UnixDialer{Control: a, Bulk: b}, link.Options{}) // host
//	l, err := link.Accept(ctx, ports, link.Options{})                                  // guest
//
//	err = l.Send(ctx, &protocol.Ping{N: 1})
//	m, err := l.Receive(ctx)
//	st, err := l.OpenStream(ctx, protocol.Open{Op: protocol.OpExec, Exec: &open})
//	open, st, err := l.AcceptStream(ctx)
//
//	err = l.End()          // guest, before a capture: nothing is written after it
//	err = l.AwaitEnd(ctx)  // host: everything up to there has been read
//	err = l.Close()
//
// Each raw connection carries records. It starts with an exchange of nonces,
// before which bytes of an older link are discarded, because QEMU keeps
// half-sent buffers across connections; then DATA records carry a yamux
// session; END closes it. docs/PROTOCOL.md has the bytes.
//
// All methods are safe for concurrent use. Messages arrive in the order in
// which Send returned. A link owns its goroutines; Close waits for them.
//
// A link fails as a whole: when either connection breaks, when the peer breaks
// the protocol (protocol.CodeProtocol), or when it takes or gives nothing in
// the middle of a frame for Options.Stall (protocol.CodeTimeout), Done is
// closed, Err says why, and every pending call returns. What a peer can make
// this end hold is bounded: streams, their windows, one long message and a few
// queued messages. Liveness of an idle link is the owner's, by Ping.
package link
