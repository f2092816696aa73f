package link_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
	"github.com/ratoon-project/ratoon/protocol/link/linktest"
)

// mux encodes the header of a yamux frame and a body.
func mux(typ byte, flags uint16, stream, length uint32, body string) []byte {
	b := []byte{0, typ}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	b = binary.BigEndian.AppendUint32(b, length)
	return append(b, body...)
}

const (
	muxData, muxWindow, muxPing = 0, 1, 2
	flagSYN, flagACK            = 1, 2
)

// data is one DATA record.
func data(payload []byte) []byte { return link.Record('D', payload) }

// A guest is hostile, the host is ours: whatever the guest does, the link ends
// with a typed error and nothing stays behind.
func TestHostileGuest(t *testing.T) {
	t.Parallel()
	// The control stream is number 1; the guest acknowledges it first.
	ack := data(mux(muxWindow, flagACK, 1, 0, ""))
	frame := func(n uint32, body string) []byte {
		b := binary.BigEndian.AppendUint32(nil, n)
		b = append(b, body...)
		return data(mux(muxData, 0, 1, uint32(len(b)), string(b)))
	}
	for _, tc := range []struct {
		name    string
		control []byte
		bulk    []byte
		code    protocol.Code
	}{
		{"unknown record", link.Record('X', nil), nil, protocol.CodeProtocol},
		{"empty data record", link.Record('D', nil), nil, protocol.CodeProtocol},
		{"data record over the limit", link.Record('D', make([]byte, link.MaxRecord+1)), nil, protocol.CodeProtocol},
		{"end record with a payload", nil, link.Record('E', []byte("x")), protocol.CodeProtocol},
		{"data after end", append(link.Record('E', nil), 'x'), nil, protocol.CodeProtocol},
		{"end inside a frame", append(data(mux(muxData, 0, 1, 100, "x")), link.Record('E', nil)...), nil, protocol.CodeProtocol},
		{"new handshake", link.SYN(1, 2), nil, protocol.CodeUnavailable},
		{"handshake record of a wrong length", link.Record('S', []byte("x")), nil, protocol.CodeProtocol},
		{"record header cut", []byte("D\x00"), nil, protocol.CodeTimeout},
		{"record cut", nil, data([]byte("0123456789"))[:8], protocol.CodeTimeout},
		{"multiplexer's frame cut", data(mux(muxData, 0, 1, 100, "x")), nil, protocol.CodeTimeout},
		{"message cut", bytes.Join([][]byte{ack, frame(100, "x")}, nil), nil, protocol.CodeTimeout},
		{"multiplexer of another version", data([]byte("\x01\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00")), nil, protocol.CodeProtocol},
		{"multiplexer's frame of no type", data(mux(9, 0, 1, 0, "")), nil, protocol.CodeProtocol},
		{"multiplexer's ping", nil, data(mux(muxPing, flagSYN, 0, 1, "")), protocol.CodeProtocol},
		{"stream with a number of the host", nil, data(mux(muxWindow, flagSYN, 3, 0, "")), protocol.CodeProtocol},
		{"stream opened twice", nil, data(append(mux(muxWindow, flagSYN, 2, 0, ""), mux(muxWindow, flagSYN, 2, 0, "")...)), protocol.CodeProtocol},
		{"window exceeded", nil, data(mux(muxData, flagSYN, 2, 1<<30, "x")), protocol.CodeProtocol},
		{"stream on the control connection", data(mux(muxWindow, flagSYN, 2, 0, "")), nil, protocol.CodeProtocol},
		{"control frame over the limit", bytes.Join([][]byte{ack, frame(protocol.MaxControlFrame+1, "")}, nil), nil, protocol.CodeProtocol},
		{"message of no type", bytes.Join([][]byte{ack, frame(7, "\x92\xa4pony\x80")}, nil), nil, protocol.CodeProtocol},
		{"long message that never came", bytes.Join([][]byte{ack, frame(9, "\x92\xa4long\x81\xa1n\x01")}, nil), nil, protocol.CodeProtocol},
		{"stream without an open frame", nil, data(mux(muxWindow, flagSYN, 2, 0, "")), protocol.CodeProtocol},
		{"open frame that is no map", nil, data(mux(muxData, flagSYN, 2, 5, "\x00\x00\x00\x01\x01")), protocol.CodeProtocol},
		{"connection closed", nil, nil, protocol.CodeUnavailable},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			host, control, bulk := hostileGuest(t)
			if tc.control == nil && tc.bulk == nil {
				control.Close()
			}
			control.Write(tc.control)
			bulk.Write(tc.bulk)
			<-host.Done()
			if protocol.CodeOf(host.Err()) != tc.code {
				t.Errorf("got %v, want %s", host.Err(), tc.code)
			}
			if m, err := host.Receive(t.Context()); protocol.CodeOf(err) != tc.code {
				t.Errorf("receive: got %v, %v, want %s", m, err, tc.code)
			}
			if err := host.Send(t.Context(), &protocol.Ping{}); err == nil {
				t.Error("send on a broken link succeeds")
			}
			if err := host.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// hostileGuest makes a link whose guest end is raw.
func hostileGuest(t *testing.T) (host *link.Link, control, bulk net.Conn) {
	t.Helper()
	h, g := linktest.Carriers()
	greeted := make(chan error, 1)
	go func() {
		var err error
		control, bulk, err = link.Greet(t.Context(), g, false)
		greeted <- err
	}()
	host, err := link.Connect(t.Context(), h, link.Options{Stall: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-greeted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		host.Close()
		control.Close()
		bulk.Close()
	})
	return host, control, bulk
}

// Streams that nobody takes are counted, and too many end the link.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	host, _, bulk := hostileGuest(t)
	go func() {
		for id := uint32(2); ; id += 2 {
			open := "\x00\x00\x00\x0a\x81\xa2op\xa5files"
			if _, err := bulk.Write(data(mux(muxData, flagSYN, id, uint32(len(open)), open))); err != nil {
				return
			}
		}
	}()
	// Not reading what the host answers would be another reason to end.
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := bulk.Read(buf); err != nil {
				return
			}
		}
	}()
	<-host.Done()
	if protocol.CodeOf(host.Err()) != protocol.CodeProtocol || !strings.Contains(host.Err().Error(), "streams") {
		t.Errorf("got %v, want %s for streams", host.Err(), protocol.CodeProtocol)
	}
}

// A peer that reads nothing stops writers, and ends the link when a frame is
// cut by that; it does not fill memory.
func TestPeerThatReadsNothing(t *testing.T) {
	t.Parallel()
	host, _, bulk := hostileGuest(t)
	// Windows as large as they get, so that only the carrier holds back.
	bulk.Write(data(mux(muxWindow, flagACK, 1, 1<<31, "")))
	st, err := host.OpenStream(t.Context(), protocol.Open{Op: protocol.OpFiles})
	if err != nil {
		t.Fatal(err)
	}
	frame := &protocol.FileFrame{Data: make([]byte, 1<<20)}
	for err == nil {
		err = st.Send(frame)
	}
	if protocol.CodeOf(err) != protocol.CodeTimeout {
		t.Errorf("got %v, want %s", err, protocol.CodeTimeout)
	}
	<-host.Done()
}

// The search for a handshake ends.
func TestGarbageForEver(t *testing.T) {
	t.Parallel()
	h, g := linktest.Carriers()
	go func() {
		raw, err := g.Open(t.Context(), link.Control)
		if err != nil {
			return
		}
		defer raw.Close()
		junk := bytes.Repeat([]byte("SARATN\r\n"), 8<<10)
		for {
			if _, err := raw.Write(junk); err != nil {
				return
			}
		}
	}()
	go func() {
		if raw, err := g.Open(t.Context(), link.Bulk); err == nil {
			<-t.Context().Done()
			raw.Close()
		}
	}()
	_, err := link.Connect(t.Context(), h, link.Options{})
	if protocol.CodeOf(err) != protocol.CodeProtocol {
		t.Errorf("got %v, want %s", err, protocol.CodeProtocol)
	}
}

// A flood of SYNs before the link is answered at a bounded cost.
func TestFloodOfSyns(t *testing.T) {
	t.Parallel()
	h, g := linktest.Carriers()
	flood := bytes.Repeat(link.SYN(1, 2), 1000)
	for _, ch := range []link.Channel{link.Control, link.Bulk} {
		go func() {
			raw, err := g.Open(t.Context(), ch)
			if err != nil {
				return
			}
			defer raw.Close()
			for {
				if _, err := raw.Write(flood); err != nil {
					return
				}
			}
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := link.Connect(ctx, h, link.Options{})
	if protocol.CodeOf(err) != protocol.CodeProtocol {
		t.Errorf("got %v, want %s", err, protocol.CodeProtocol)
	}
}

// A SYN that the host repeated before it knew that the handshake was over is
// ignored; one after the host's first data means a new host.
func TestRepeatedSyn(t *testing.T) {
	t.Parallel()
	h, g := linktest.Carriers()
	wire := &tap{Carrier: h, logs: make(map[link.Channel]*tapLog)}
	accepted := make(chan error)
	var guest *link.Link
	go func() {
		var err error
		guest, err = link.Accept(t.Context(), g, link.Options{})
		accepted <- err
	}()
	control, bulk, err := link.Greet(t.Context(), wire, true)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	defer bulk.Close()
	syn := wire.logs[link.Control].bytes[:len(link.SYN(0, 0))]
	open := data(mux(muxWindow, flagSYN, 1, 0, ""))
	control.Write(bytes.Join([][]byte{syn, syn, open}, nil))
	if err := <-accepted; err != nil {
		t.Fatalf("a repeated SYN broke the link: %v", err)
	}
	defer guest.Close()
	control.Write(syn)
	<-guest.Done()
	if protocol.CodeOf(guest.Err()) != protocol.CodeUnavailable {
		t.Errorf("SYN after data: got %v, want %s", guest.Err(), protocol.CodeUnavailable)
	}
}
