// Package program runs one program of a line of timelines and follows it:
// over the end of every link, and from a timeline to the one that replaces it
// by restore.
//
//	p := program.New(program.Options{Spec: &protocol.ExecSpec{Argv: argv, Stdin: true}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
//	exit, err := p.Follow(ctx, source)
//
// Output is never written twice and consumed input is never replayed. A
// program's output has offsets, counted in the guest; after a restore they go
// back, and what the replaced timeline had produced up to the checkpoint is
// not asked for again. Input that no timeline has taken is kept, at most
// inputAhead bytes, and offered to the next.
//
// A Program is used by one Follow at a time; Signal and Resize are safe beside
// it. Follow ends with the program's exit, the line's end or ctx.
package program
