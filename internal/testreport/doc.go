// Command testreport reads the events of `go test -json` from standard input,
// prints one line per package and the output of what failed, and then every
// skipped test with its reason.
//
//	go test -json ./... | go run ./internal/testreport -skips integration/expected-skips.txt -strict
//
// The file lists the skips that are expected where all of `make setup` is
// installed: on each line a package (relative to the module), a test's name and
// why. With -strict a skip that is not listed is a failure, so that CI notices
// when a test silently stops running; without it is only pointed out.
//
// Exit status: 0 all passed, 1 a test failed or was unexpectedly skipped, 2 the
// input is not what `go test -json` writes.
package main
