package wire

import (
	"cmp"
	"reflect"
	"strings"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// What a decoded body may occupy: budgetFactor bytes for each of its own, and
// budgetFloor besides. An empty map is one byte in msgpack and a large struct
// in an array of them, so the rules of Precheck alone would let a megabyte of
// input become more than a hundred. Honest messages stay far below.
const (
	budgetFactor = 8
	budgetFloor  = 1 << 20
)

// Sizes of what the runtime allocates, rounded up; measured with Go 1.26.
const (
	sizeMap   = 48 // an empty map
	sizeGroup = 8  // slots of the first group of a map
	sizeAlloc = 16 // what an allocation is rounded up by, and a boxed number
	growth    = 2  // how much more than its content a growing map may hold
)

// always is the length of a body that stays under budgetFloor whatever is in it.
const always = 2 << 10

// budget walks a body that Precheck has passed along the type it is decoded
// into and sums what the decoder will allocate.
type budget struct {
	left int
}

func checkBudget(b []byte, v any) error {
	if len(b) <= always {
		return nil
	}
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Pointer {
		return nil // the decoder refuses it
	}
	w := budget{left: budgetFactor*len(b) + budgetFloor}
	w.value(b, t.Elem())
	if w.left < 0 {
		return protocol.Errorf(protocol.CodeProtocol, "%d bytes of msgpack would take more than %d times their memory", len(b), budgetFactor)
	}
	return nil
}

// value charges the value at the start of b, decoded into a t whose own size
// has been charged, and returns its length. Where b does not fit t the decoder
// will stop, so that any charge is right.
func (w *budget) value(b []byte, t reflect.Type) int {
	h, _ := header(b)
	if h.nil {
		return h.size
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
		w.left -= max(int(t.Size()), sizeAlloc)
	}
	switch h.kind {
	case kindScalar:
		if t.Kind() == reflect.Interface {
			w.left -= sizeAlloc
		}
		return h.size
	case kindString, kindBinary:
		w.left -= h.n + sizeAlloc
		return h.size + h.n
	case kindArray:
		return w.array(b, h, t)
	}
	return w.mapping(b, h, t)
}

func (w *budget) array(b []byte, h head, t reflect.Type) int {
	elem := anyType
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		elem = t.Elem()
	}
	w.left -= h.n*int(elem.Size()) + 3*8 // and the slice header, boxed in an interface
	at := h.size
	for range h.n {
		if w.left < 0 {
			return len(b)
		}
		at += w.value(b[at:], elem)
	}
	return at
}

func (w *budget) mapping(b []byte, h head, t reflect.Type) int {
	key, elem := stringType, anyType
	if t.Kind() == reflect.Map {
		key, elem = t.Key(), t.Elem()
	}
	if t.Kind() != reflect.Struct {
		slots := h.n
		if slots > 0 {
			slots = max(sizeGroup, growth*slots)
		}
		w.left -= sizeMap + slots*int(key.Size()+elem.Size()+1)
	}
	at := h.size
	for range h.n {
		if w.left < 0 {
			return len(b)
		}
		k, _ := header(b[at:])
		name := b[at+k.size : at+k.size+k.n]
		at += k.size + k.n
		field := elem
		if t.Kind() == reflect.Struct {
			field = fieldType(t, name)
		} else {
			w.left -= k.n + sizeAlloc
		}
		at += w.value(b[at:], field)
	}
	return at
}

var (
	anyType    = reflect.TypeFor[any]()
	stringType = reflect.TypeFor[string]()
	fields     sync.Map // reflect.Type to map[string]reflect.Type
)

// fieldType is the type of the field that msgpack calls name, any if there is
// none.
func fieldType(t reflect.Type, name []byte) reflect.Type {
	m, ok := fields.Load(t)
	if !ok {
		byName := make(map[string]reflect.Type)
		for f := range t.Fields() {
			tag, _, _ := strings.Cut(f.Tag.Get("msgpack"), ",")
			byName[cmp.Or(tag, f.Name)] = f.Type
		}
		m, _ = fields.LoadOrStore(t, byName)
	}
	if ft, ok := m.(map[string]reflect.Type)[string(name)]; ok {
		return ft
	}
	return anyType
}
