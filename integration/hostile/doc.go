// Package hostile runs the real coordinator (host/sandbox) with its real journal
// against guests that break the protocol on real links, beside an honest guest
// in the same process. There is nothing in it but tests.
//
//	go test ./integration/hostile -v -run 'TestHostile/flood'
//
// Each attack must end in a typed error or in nothing at all, stop its own
// timeline where the guest cannot be trusted to be in one state any more, and
// leave the honest sandbox alone. Afterwards goroutines and open files are as
// many as before. Seconds and MiB are printed beside those of an idle guest;
// they hold both ends of the links, since the guests live in the same process.
package hostile
