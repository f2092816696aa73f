// Package agent is agentd's worker: it speaks with the host over a link, takes
// the calls of guest programs on a local socket, and stops and starts the user
// processes when the host asks for a capture.
//
//	a := agent.New(agent.Config{
//		Start: first.Start, Record: first.Record, Keeper: keeper,
//		Quiescer: quiescer, Fixer: fixer, Execs: execs, Files: files,
//		Accept: agent.Carrier(link.NewSerialPorts(), link.Options{}),
//		Socket: protocol.GuestSocket, Log: log,
//	})
//	err := a.Run(ctx) // until ctx ends, or PID 1 does
//
// Machine holds the rules and does no I/O: it takes events and answers with
// the effects that follow, in order. Agent runs them one after another under
// one lock, so a thaw is never seen half done. Reads and writes of links and
// of the local socket are goroutines of their own that neither hold that lock
// nor are waited for by it: a program that does not read its answer and a host
// that does not read its link delay nobody else.
//
// Guest programs are not trusted: what they send is bounded in size, number
// and time, and a bad request ends only its own connection. A host is trusted
// to be right, not to be alive.
package agent
