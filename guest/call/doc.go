// Package call is `agentd call`: the calls of package client for shell
// scripts.
//
//	code := call.Run(ctx, []string{"--format", "env", "branch", "3"}, call.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
//
// Results go to standard output, as one line of JSON or as assignments that a
// POSIX shell can eval; messages go to standard error. Run returns the exit
// code; see Usage.
package call
