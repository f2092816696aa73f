package simulation_test

import (
	"fmt"
	"regexp"
)

var ids = regexp.MustCompile(`\b(sb|ln|tl|cp|ba|st|br|vm|ex)-[a-z2-7]{16}\b`)

// short replaces identifiers by short names, numbered as they first appear.
func (w *world) short(s string) string {
	return ids.ReplaceAllStringFunc(s, func(id string) string { return w.nameOf(id[:2], id) })
}

func (w *world) nameOf(kind, id string) string {
	n, ok := w.names[id]
	if !ok {
		w.names[kind+"#"] += "x"
		n = fmt.Sprintf("%s%d", kind, len(w.names[kind+"#"]))
		w.names[id] = n
	}
	return n
}
