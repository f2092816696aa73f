package protocol_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

var update = flag.Bool("update", false, "rewrite the golden frames and the tables of docs/PROTOCOL.md")

const goldenDir = "testdata/golden"

// entry is one line of index.json. Value is the body as JSON, in the order of
// the wire, with {"$bin": hex} for binary; an implementation in any language
// encodes it to the same bytes.
type entry struct {
	Name  string          `json:"name"`
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
	Hex   string          `json:"hex"`
}

// frame encodes a sample with its length, and names its type.
func frame(v any) (frame []byte, typ string, err error) {
	var buf bytes.Buffer
	if m, ok := v.(protocol.Message); ok {
		body, err := wire.EncodeMessage(m)
		if err != nil {
			return nil, "", err
		}
		err = wire.WriteBody(&buf, body, protocol.MaxControlFrame)
		return buf.Bytes(), "message", err
	}
	err = wire.WriteFrame(&buf, v, protocol.MaxDataFrame)
	return buf.Bytes(), reflect.TypeOf(v).Elem().Name(), err
}

func TestGolden(t *testing.T) {
	t.Parallel()
	all := samples()
	if *update {
		writeGolden(t, all)
	}
	index := readIndex(t)
	if len(index) != len(all) {
		t.Errorf("index has %d frames, want %d; run with -update", len(index), len(all))
	}
	for i, s := range all {
		want, typ, err := frame(s.value)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		text, err := os.ReadFile(filepath.Join(goldenDir, s.name+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		if i >= len(index) || index[i].Name != s.name || index[i].Type != typ || index[i].Hex != strings.TrimSpace(string(text)) {
			t.Errorf("%s: index and file differ; run with -update", s.name)
			continue
		}
		golden, err := hex.DecodeString(index[i].Hex)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if !bytes.Equal(golden, want) {
			t.Errorf("%s: encoded as\n%x, want\n%x", s.name, want, golden)
		}
		var value bytes.Buffer
		if err := json.Compact(&value, index[i].Value); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if got := describe(golden[4:]); got != value.String() {
			t.Errorf("%s: the frame says\n%s, its description\n%s", s.name, got, value.String())
		}
		checkDecode(t, s, golden)
	}
}

func checkDecode(t *testing.T, s sample, golden []byte) {
	t.Helper()
	got := reflect.New(reflect.TypeOf(s.value).Elem()).Interface()
	r := bytes.NewReader(golden)
	var err error
	if _, ok := s.value.(protocol.Message); ok {
		var body []byte
		if body, err = wire.ReadBody(r, protocol.MaxControlFrame); err == nil {
			got, err = wire.DecodeMessage(body)
		}
	} else {
		err = wire.ReadFrame(r, got, protocol.MaxDataFrame)
	}
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	if diff := cmp.Diff(s.value, got); diff != "" {
		t.Errorf("%s: decoded with a difference: %s", s.name, diff)
	}
}

func readIndex(t *testing.T) (index []entry) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(goldenDir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &index); err != nil {
		t.Fatal(err)
	}
	return index
}

func writeGolden(t *testing.T, all []sample) {
	t.Helper()
	if err := os.RemoveAll(goldenDir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(goldenDir, 0o755); err != nil {
		t.Fatal(err)
	}
	var index []entry
	for _, s := range all {
		b, typ, err := frame(s.value)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		e := entry{s.name, typ, json.RawMessage(describe(b[4:])), hex.EncodeToString(b)}
		index = append(index, e)
		if err := os.WriteFile(filepath.Join(goldenDir, s.name+".hex"), []byte(e.Hex+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.MarshalIndent(index, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(goldenDir, "index.json"), append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Every message and every struct that travels has a golden frame.
func TestGoldenIsComplete(t *testing.T) {
	t.Parallel()
	have := make(map[string]bool)
	var visit func(v reflect.Value)
	visit = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				visit(v.Elem())
			}
		case reflect.Struct:
			have[v.Type().Name()] = true
			for _, f := range v.Fields() {
				visit(f)
			}
		case reflect.Slice:
			for i := range v.Len() {
				visit(v.Index(i))
			}
		case reflect.Map:
			for _, e := range v.Seq2() {
				visit(e)
			}
		}
	}
	for _, s := range samples() {
		visit(reflect.ValueOf(s.value))
	}
	for name := range sources(t).structs {
		if !have[name] {
			t.Errorf("%s has no golden frame", name)
		}
	}
	for name, make := range protocol.Types() {
		if m := make(); m.Type() != name {
			t.Errorf("message listed as %s calls itself %s", name, m.Type())
		}
	}
}

// describe writes a msgpack value as JSON. It is an own small decoder, so that
// encoder and decoder of the package are checked by a third.
func describe(b []byte) string {
	var out strings.Builder
	rest := describeValue(&out, b)
	if len(rest) > 0 {
		return out.String() + fmt.Sprintf(" and %d bytes", len(rest))
	}
	return out.String()
}

func describeValue(out *strings.Builder, b []byte) []byte {
	c := b[0]
	b = b[1:]
	size := func(width int) int {
		var n [8]byte
		copy(n[8-width:], b)
		b = b[width:]
		return int(binary.BigEndian.Uint64(n[:]))
	}
	text := func(n int) {
		j, _ := json.Marshal(string(b[:n]))
		out.Write(j)
		b = b[n:]
	}
	switch {
	case c <= 0x7f:
		fmt.Fprint(out, c)
	case c >= 0xe0:
		fmt.Fprint(out, int8(c))
	case c <= 0x8f:
		return describeMap(out, b, int(c&0xf))
	case c <= 0x9f:
		return describeList(out, b, int(c&0xf))
	case c <= 0xbf:
		text(int(c & 0x1f))
	case c == 0xc0:
		out.WriteString("null")
	case c == 0xc2 || c == 0xc3:
		fmt.Fprint(out, c == 0xc3)
	case c >= 0xc4 && c <= 0xc6:
		n := size(1 << (c - 0xc4))
		fmt.Fprintf(out, `{"$bin":"%x"}`, b[:n])
		b = b[n:]
	case c >= 0xcc && c <= 0xcf:
		fmt.Fprint(out, uint64(size(1<<(c-0xcc))))
	case c >= 0xd0 && c <= 0xd3:
		shift := 64 - 8<<(c-0xd0)
		fmt.Fprint(out, int64(size(1<<(c-0xd0)))<<shift>>shift)
	case c >= 0xd9 && c <= 0xdb:
		text(size(1 << (c - 0xd9)))
	case c == 0xdc || c == 0xdd:
		return describeList(out, b, size(2<<(c-0xdc)))
	case c == 0xde || c == 0xdf:
		return describeMap(out, b, size(2<<(c-0xde)))
	default:
		fmt.Fprintf(out, "<%#x>", c)
	}
	return b
}

func describeMap(out *strings.Builder, b []byte, n int) []byte {
	out.WriteByte('{')
	for i := range n {
		if i > 0 {
			out.WriteByte(',')
		}
		b = describeValue(out, b)
		out.WriteByte(':')
		b = describeValue(out, b)
	}
	out.WriteByte('}')
	return b
}

func describeList(out *strings.Builder, b []byte, n int) []byte {
	out.WriteByte('[')
	for i := range n {
		if i > 0 {
			out.WriteByte(',')
		}
		b = describeValue(out, b)
	}
	out.WriteByte(']')
	return b
}

func TestCodesHaveRemedies(t *testing.T) {
	t.Parallel()
	codes := protocol.Codes()
	slices.Sort(codes)
	for _, c := range codes {
		if c.Remedy() == "" {
			t.Errorf("%s has no remedy", c)
		}
	}
	if declared := sources(t).consts["Code"]; len(declared) != len(codes) {
		t.Errorf("%d codes are declared, %d have a remedy", len(declared), len(codes))
	}
}
