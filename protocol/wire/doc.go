// Package wire turns messages into frames and back.
//
// A frame is a 4-byte big-endian length and that many bytes of msgpack. Both
// ends of a link, and guest programs on agentd's socket, speak frames:
//
//	err := wire.WriteFrame(conn, &protocol.LocalRequest{Kind: protocol.CallTree}, protocol.MaxMessage)
//	...
//	var reply protocol.LocalReply
//	err = wire.ReadFrame(conn, &reply, protocol.MaxMessage)
//
//	body, err := wire.EncodeMessage(&protocol.Ping{N: 1}) // [type, body]
//	m, err := wire.DecodeMessage(body)
//
// Input is hostile. The msgpack decoder allocates what a header claims, so
// every body is walked first (Precheck), and what it would occupy once decoded
// is bounded by a multiple of its length. Input that breaks the rules is an
// error of protocol.CodeProtocol; a value that is too long to send is one of
// protocol.CodeTooLarge; errors of the connection are passed on.
//
// The functions keep no state and may be used concurrently, but two writers on
// one connection need a lock between them.
package wire
