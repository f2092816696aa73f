package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratoon-project/ratoon/protocol"
)

// maxWhole is the largest whole number in a request, either way: up to there
// every client can hold each one (RFC 8259, section 6).
const maxWhole = 1<<53 - 1

// checkKind refuses a body of another content type than the route takes.
func (q *request) checkKind(want string) error {
	t := q.Header.Get("Content-Type")
	if t == "" || q.ContentLength == 0 {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(t); err != nil || kind != want {
		return protocol.Errorf(protocol.CodeInvalidArgument, "Content-Type %.80q: want %s", t, want)
	}
	return nil
}

// readBody reads the whole body, which is small.
func (q *request) readBody() error {
	if q.ContentLength == 0 {
		return nil
	}
	var err error
	if q.body, err = io.ReadAll(http.MaxBytesReader(q.w, q.Body, maxBody)); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return protocol.Errorf(protocol.CodeTooLarge, "the body has more than %d bytes", maxBody)
		}
		return unread(err)
	}
	http.NewResponseController(q.w).SetReadDeadline(time.Time{})
	return nil
}

// pieces is a body each piece of which has to come within a time; 0 is any.
type pieces struct {
	io.ReadCloser
	conn   *http.ResponseController
	within time.Duration
}

// Read implements io.Reader.
func (p *pieces) Read(b []byte) (int, error) {
	if p.within > 0 {
		p.conn.SetReadDeadline(time.Now().Add(p.within))
	} else {
		p.conn.SetReadDeadline(time.Time{})
	}
	n, err := p.ReadCloser.Read(b)
	switch {
	case errors.Is(err, io.EOF): // what waits for the client to go has no deadline
		p.conn.SetReadDeadline(time.Time{})
	case err != nil:
		err = unread(err)
	}
	return n, err
}

// unread is the error of a body that did not come whole.
func unread(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the rest of the body did not come in time")
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "read the body: %v", err)
}

// decode reads the body into v, a pointer to a struct, as openapi.yaml has it.
// That is stricter than encoding/json: a field is named exactly, known and
// given once, null is no value, and a field that is not tagged as optional must
// be there. No body is one without fields.
func (q *request) decode(v any) error {
	body := q.body
	if len(body) == 0 {
		body = []byte("{}")
	}
	if !utf8.Valid(body) {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the body is not UTF-8")
	}
	var syntax json.RawMessage
	if err := json.Unmarshal(body, &syntax); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the body is not one JSON value: %v", err)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := readValue(d, "the body", reflect.ValueOf(v).Elem()); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the body is not what this route takes: %v", err)
	}
	return nil
}

// readValue reads the next value, whose syntax was checked. at names it.
func readValue(d *json.Decoder, at string, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return readValue(d, at, v.Elem())
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch v.Kind() {
	case reflect.Struct:
		if t == json.Delim('{') {
			return readStruct(d, at, v)
		}
		return fmt.Errorf("%s: want an object", at)
	case reflect.Map:
		if t == json.Delim('{') {
			return readMap(d, at, v)
		}
		return fmt.Errorf("%s: want an object", at)
	case reflect.Slice:
		if t == json.Delim('[') {
			return readSlice(d, at, v)
		}
		return fmt.Errorf("%s: want an array", at)
	case reflect.String:
		if s, ok := t.(string); ok {
			v.SetString(s)
			return nil
		}
		return fmt.Errorf("%s: want a string", at)
	case reflect.Bool:
		if b, ok := t.(bool); ok {
			v.SetBool(b)
			return nil
		}
		return fmt.Errorf("%s: want true or false", at)
	}
	n, ok := t.(json.Number)
	if !ok {
		return fmt.Errorf("%s: want a number", at)
	}
	return readNumber(n, at, v)
}

// readNumber takes 3.0 and 3e0 for the whole number 3, as JSON Schema does.
func readNumber(n json.Number, at string, v reflect.Value) error {
	f, err := n.Float64()
	if err != nil {
		return fmt.Errorf("%s: %.40s is beyond all numbers", at, n)
	}
	if v.Kind() == reflect.Float64 {
		v.SetFloat(f)
		return nil
	}
	if f != math.Trunc(f) || math.Abs(f) > maxWhole {
		return fmt.Errorf("%s: %.40s is no whole number up to %d", at, n, maxWhole)
	}
	if v.CanInt() {
		v.SetInt(int64(f))
		return nil
	}
	if f < 0 || v.OverflowUint(uint64(f)) {
		return fmt.Errorf("%s: %.40s is out of range", at, n)
	}
	v.SetUint(uint64(f))
	return nil
}

func readStruct(d *json.Decoder, at string, v reflect.Value) error {
	wanted, required := map[string]reflect.Value{}, map[string]bool{}
	for i := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		wanted[name] = v.Field(i)
		if options == "" {
			required[name] = true
		}
	}
	err := readMembers(d, at, func(name string) error {
		f, ok := wanted[name]
		if !ok {
			return fmt.Errorf("%s has a field %.40q, which is not known", at, name)
		}
		delete(required, name)
		return readValue(d, name, f)
	})
	if err == nil && len(required) > 0 {
		err = fmt.Errorf("%s lacks %s", at, strings.Join(slices.Sorted(maps.Keys(required)), " and "))
	}
	return err
}

func readMap(d *json.Decoder, at string, v reflect.Value) error {
	v.Set(reflect.MakeMap(v.Type()))
	return readMembers(d, at, func(name string) error {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := readValue(d, fmt.Sprintf("%s: %.40q", at, name), e); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(name), e)
		return nil
	})
}

// readMembers calls f at the value of each member of an object.
func readMembers(d *json.Decoder, at string, f func(name string) error) error {
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name := t.(string) // the syntax was checked
		if seen[name] {
			return fmt.Errorf("%s has %.40q twice", at, name)
		}
		seen[name] = true
		if err := f(name); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func readSlice(d *json.Decoder, at string, v reflect.Value) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for i := 0; d.More(); i++ {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := readValue(d, fmt.Sprintf("%s[%d]", at, i), e); err != nil {
			return err
		}
		v.Set(reflect.Append(v, e))
	}
	_, err := d.Token()
	return err
}
