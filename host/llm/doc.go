// Package llm answers the model calls of guest programs: a broker with a
// bound on what is under way, and the servers and stand-ins behind it.
//
//	upstream, err := llm.ParseSpec("openai:gpt-4.1-mini", nil)
//	broker := llm.NewBroker(llm.Options{Upstream: upstream, Ledger: ledger})
//	defer broker.Close()
//	result, err := broker.Query(ctx, llm.Call{Timeline: tl, Key: key, Args: args})
//
// The broker reserves with the ledger before anything is sent and settles
// once afterwards, with one Usage per prompt. It does not know keys it has
// seen: its caller runs each key once, and nothing here is sent twice (the
// OpenAI client does not retry unless told to). The key of a server stays in
// this process; it is a Secret, which no log or format verb shows, and it is
// cut out of what a server answers.
//
// Concurrency: a Broker and every Upstream of this package are safe for
// concurrent use.
//
// Failure: without an upstream Query answers CodeNoModel. A prompt that fails
// has its error (CodeModelFailed, CodeTimeout) in its Completion while the
// others go on; Query itself fails when nothing was sent (CodeBusy, what
// Reserve answered), when it was cancelled, or when the ledger could not
// settle.
package llm
