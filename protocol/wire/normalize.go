package wire

import (
	"math"
	"reflect"
	"sync"
)

// normalize gives numbers in fields of type any one type whatever their length
// on the wire: int64, uint64 beyond its range, float64.
func normalize(v reflect.Value) {
	if !holdsAny(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			normalize(v.Elem())
		}
	case reflect.Interface:
		if !v.IsNil() && v.CanSet() {
			v.Set(reflect.ValueOf(plain(v.Interface())))
		}
	case reflect.Struct:
		for f, fv := range v.Fields() {
			if f.IsExported() {
				normalize(fv)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			normalize(v.Index(i))
		}
	case reflect.Map:
		for key, e := range v.Seq2() {
			settable := reflect.New(e.Type()).Elem()
			settable.Set(e)
			normalize(settable)
			v.SetMapIndex(key, settable)
		}
	}
}

func plain(v any) any {
	switch v := v.(type) {
	case int8:
		return int64(v)
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v)
		}
	case float32:
		return float64(v)
	case []any:
		for i, e := range v {
			v[i] = plain(e)
		}
	case map[string]any:
		for k, e := range v {
			v[k] = plain(e)
		}
	}
	return v
}

var anyHolders sync.Map // reflect.Type to bool

// holdsAny tells whether values of type t can hold an interface somewhere.
func holdsAny(t reflect.Type) bool {
	if known, ok := anyHolders.Load(t); ok {
		return known.(bool)
	}
	holds := search(t, make(map[reflect.Type]bool))
	anyHolders.Store(t, holds)
	return holds
}

func search(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return search(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if f.IsExported() && search(f.Type, seen) {
				return true
			}
		}
	}
	return false
}
