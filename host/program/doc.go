// Package program runs one program of a line of timelines and follows it:
// over the end of every link, and from a timeline to the one that replaces it
// by restore.
//
//	p := program.New(program.Options{Spec: &protocol.ExecSpec{Argv: argv, Stdin: true}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
//	exit, err := p.Follow(ctx, source)
//
// Output is written once and consumed input is never replayed. A program's
// output has offsets, counted in the guest; after a restore they go back, and
// of what the replaced timeline had produced up to the checkpoint only that is
// asked for which was not written yet. Input that no timeline has taken is
// kept, about inputAhead bytes, and so are the last protocol.MaxExecUnread that
// one has: a restored timeline is given what the one before had not consumed.
//
// Follow is called once; Signal and Resize are safe beside it. It ends with
// the program's exit, the line's end, ctx, an error of an output, or offsets
// that the guest cannot have (CodeProtocol).
package program
