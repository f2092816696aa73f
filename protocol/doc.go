// Package protocol holds what host and guest agree on: identifiers, messages,
// error codes, limits and versions. docs/PROTOCOL.md is the normative text and
// a test holds it to the constants here.
//
// The package does no I/O. Frames are in protocol/wire, connections in
// protocol/link. Values are plain data: safe to copy, not safe to change while
// another goroutine reads them.
package protocol

// Version is the protocol version that both ends of a link state in their
// hello. There is no negotiation: a link between unequal versions is refused
// with CodeVersionMismatch, naming both.
const Version = 1
